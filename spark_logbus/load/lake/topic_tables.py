"""Tables of a topic in a lake: that of its records, and that of its dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from spark_logbus.load.commit import Commit
from spark_logbus.load.config import TargetConfig
from spark_logbus.load.errors import WarehouseError
from spark_logbus.load.lake.letters import DeadLetters
from spark_logbus.load.lake.marks import OwnDirectory
from spark_logbus.load.lake.reading import rows_of
from spark_logbus.load.lake.table import TOPIC, LakeFile, LakeTable, LakeVersion, Progress
from spark_logbus.load.layout import LayoutChoice

#: Columns that say which record each row is, and when that was.
ROWS: Final = ("partition", "offset", "timestamp")


@dataclass(frozen=True, slots=True)
class TopicTables:
    """Both tables, whether they are there or not, and the options of who loads into them."""

    spark: SparkSession
    records: LakeTable
    letters: DeadLetters
    config: TargetConfig
    choice: LayoutChoice

    @property
    def name(self) -> str:
        return self.records.name

    def opened(self) -> LakeVersion:
        """Opens the newest version of a table that was there. Raises WarehouseError."""
        version = self.records.newest()
        if version is None:
            raise WarehouseError(
                f"Table {self.name} was there when this load began and is gone. Restore it, or run "
                "the load again for a new one."
            )
        return version

    def progress(self, version: LakeVersion) -> Progress | None:
        """Reads the offsets of a version. Raises WarehouseError where it holds another topic."""
        topic = version.properties.get(TOPIC)
        if topic not in (None, self.config.topic):
            raise WarehouseError(
                f"Table {self.name} holds the topic {topic}, not {self.config.topic}: rows are "
                "known by partition and offset. Load into another table."
            )
        return version.progress(restored=self.config.accept_restore)

    def last(self, version: LakeVersion) -> Commit | None:
        """The last load that a version tells of. Raises WarehouseError."""
        return commit_of(self.progress(version))

    def own_directory(self) -> OwnDirectory:
        """Directory of the marks of loads."""
        return OwnDirectory(*self.records.own_directory(), self.config.topic)

    def rows(self) -> DataFrame:
        """Reads which records are in, dead letters too, and when they were; not the rows of other
        writers."""
        version = self.opened()
        frame = self.rows_of(version, version.files(), self.letters.files(), ROWS)
        return frame.where("partition is not null and offset is not null")

    def rows_of(
        self,
        version: LakeVersion,
        files: Sequence[LakeFile],
        letters: Sequence[LakeFile],
        columns: Sequence[str],
    ) -> DataFrame:
        """Reads ``columns`` of files of a version, and of files of dead letters."""
        frame = rows_of(self.spark, version, files, columns)
        if letters:
            frame = frame.unionByName(self.letters.rows(letters, columns))
        return frame


def commit_of(progress: Progress | None) -> Commit | None:
    """The last commit, as its progress tells it (a fence alone is none)."""
    if progress is None or progress.number == 0:
        return None
    return Commit(progress.number, "", progress.topic_id, (), dict(progress.ends), 0, ())
