"""Dead letters of a lake's table, in a table of their own beside it.

Two tables have no commit together. So the files of dead letters are written, and listed in the
load's mark, before the load commits, and their table gets them after that, under the load's number:
once, whoever does it, because a number that it has is passed over.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_logbus.load.config import TargetConfig
from spark_logbus.load.errors import WarehouseError
from spark_logbus.load.lake.columns import conformed, fit
from spark_logbus.load.lake.marks import Mark, OwnDirectory
from spark_logbus.load.lake.reading import FileRows, rows_by_file, rows_of
from spark_logbus.load.lake.table import (
    TOPIC,
    TOPIC_ID,
    Change,
    LakeFile,
    LakeTable,
    LakeVersion,
    Progress,
    VersionConflictError,
    properties_of,
)
from spark_logbus.load.lake.writing import Written, write
from spark_logbus.load.layout import Layout, Period
from spark_logbus.load.plan.window import inside
from spark_logbus.model import OffsetRange
from spark_logbus.plurals import first_of, plural

#: Commits that others may make, one after the other, while a load tries to make its own.
TRIES: Final = 30
PAUSE_S: Final = 0.05


class DeadLetters:
    """The table of a topic's dead letters, whether it is there or not."""

    def __init__(self, spark: SparkSession, table: LakeTable, config: TargetConfig) -> None:
        self._spark = spark
        self._table = table
        self._config = config

    @property
    def name(self) -> str:
        return self._table.name

    def write(self, frame: DataFrame, mark: Mark, topic_id: str) -> Written:
        """Writes files, of which the table knows nothing yet; makes it if it is not there."""
        version = self._table.newest()
        properties = properties_of(self._config.topic, topic_id, Layout(period=Period.NONE))
        if version is None:
            self._table.create(frame.schema, Layout(period=Period.NONE), properties)
            version = self._table.newest()
        elif TOPIC_ID not in version.properties:
            self._table.set_properties(properties)
            version = self._table.newest()
        if version is None:
            raise WarehouseError(f"Table {self.name} was made by this load, and is gone.")
        own = {name: version.properties.get(name) for name in (TOPIC, TOPIC_ID)}
        if own != {TOPIC: self._config.topic, TOPIC_ID: topic_id}:
            raise WarehouseError(
                f"Table {self.name} holds the topic {own[TOPIC]} with the id {own[TOPIC_ID]}, and "
                f"dead letters of {self._config.topic} with the id {topic_id} belong there. "
                "Rename it or drop it, or load into a table of another name."
            )
        fit(version.schema, frame.schema, evolve=False, widens=False, where=self.name)
        columns = conformed(frame, version.schema, ())
        return write(columns, version.writer(), mark.staging, self._config.compression)

    def discard(self, mark: Mark) -> None:
        """Deletes the files of a load that was not committed and no longer can be."""
        if self._table.newest() is not None:
            OwnDirectory(*self._table.own_directory(), self._config.topic).delete_files(mark)

    def number(self) -> int:
        """Number of the last load whose letters are in; 0 where there is none."""
        progress = self._progress()
        return 0 if progress is None else progress.number

    def held(self, ranges: tuple[OffsetRange, ...]) -> tuple[OffsetRange, ...]:
        """Returns those of ``ranges`` of which dead letters may be in already: of a table that was
        set back since, or made anew."""
        progress = self._progress()
        ends = {} if progress is None else progress.ends
        return tuple(
            each for each in ranges if each.start < ends.get(each.topic_partition.partition, 0)
        )

    def _progress(self) -> Progress | None:
        version = self._newest()
        return None if version is None else version.progress(restored=True)

    def missing(self, paths: Sequence[str]) -> list[str]:
        """Returns those of the files that are not in the storage."""
        version = self._newest()
        return [*paths] if version is None else version.missing(paths)

    def _newest(self) -> LakeVersion | None:
        """Opens the newest version; None also for a table of another topic."""
        version = self._table.newest()
        mine = version is not None and version.properties.get(TOPIC) in (None, self._config.topic)
        return version if mine else None

    def put(self, mark: Mark, topic_id: str) -> None:
        """Puts the files of a load that is committed into the table, unless they are there."""
        for _ in range(TRIES):
            version = self._newest()
            if version is None and not mark.letters:
                return
            before = None if version is None else version.progress(restored=True)
            if before is not None and before.number >= mark.number:
                return
            gone = [*mark.letters] if version is None else version.missing(mark.letters)
            if version is None or gone:
                load = f"with dead letters that load {mark.number} has committed"
                files = plural(len(gone), f"file {load} is", f"files {load} are")
                raise WarehouseError(
                    f"{files} gone from {self.name} ({first_of(gone)}). Restore them, or delete "
                    f"the mark _logbus/{mark.staging}.json of the table that was loaded, and run "
                    "reprocess.py with --dead-letters, which writes them again."
                )
            added = [version.describe(path) for path in mark.letters]
            replaced, kept = self._without(version, mark)
            ends = dict(mark.ends)
            for partition, end in (before.ends if before else {}).items():
                ends[partition] = max(end, ends.get(partition, 0))
            after = Progress(topic_id, mark.number, mark.token, ends)
            try:
                version.commit(Change(after, [*added, *kept], replaced))
                return
            except VersionConflictError:
                time.sleep(PAUSE_S)
        raise too_busy(f"put dead letters into {self.name}")

    def _without(
        self, version: LakeVersion, mark: Mark
    ) -> tuple[list[LakeFile], tuple[LakeFile, ...]]:
        """Lists the files with dead letters of ranges that are replaced, and writes new ones with
        the others of theirs."""
        found = rows_by_file(self._spark, version, version.files(), mark.replaced)
        files = [each.file for each in found]
        if not any(each.others for each in found):
            return files, ()
        others = rows_of(self._spark, version, files).where(outside(mark.replaced))
        return files, write(others, version.writer(), mark.staging).files

    def files(self) -> Sequence[LakeFile]:
        """Lists the files that are in the table."""
        version = self._newest()
        return () if version is None else version.files()

    def rows(self, files: Sequence[LakeFile], columns: Sequence[str]) -> DataFrame:
        """Reads columns of files, which the table has or is to get."""
        version = self._table.newest()
        if version is None:
            raise WarehouseError(f"Table {self.name} is gone. Restore it.")
        return rows_of(self._spark, version, files, columns)

    def find(self, ranges: Sequence[OffsetRange]) -> list[FileRows]:
        """Looks for dead letters of ``ranges``."""
        version = self._newest()
        if version is None:
            return []
        return rows_by_file(self._spark, version, version.files(), ranges)


def outside(ranges: tuple[OffsetRange, ...]) -> Column:
    """The condition that a row is of no range; rows of another writer may have no offset."""
    return ~F.coalesce(inside(ranges), F.lit(False))


def too_busy(what: str) -> WarehouseError:
    """Returns the error for a table that others commit to all the time."""
    return WarehouseError(
        f"Cannot {what}: others have committed {TRIES} times while it was tried. Run it again when "
        "fewer write there."
    )
