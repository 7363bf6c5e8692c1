"""Files in a directory by date, as the target of a load (see ``warehouse``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from spark_logbus.errors import ConfigError, DataLossError
from spark_logbus.load.chosen_columns import chosen, exact_column
from spark_logbus.load.commit import DEAD_LETTERS, Commit
from spark_logbus.load.config import TargetConfig
from spark_logbus.load.errors import translated
from spark_logbus.load.files.hadoop import HadoopDirectory, local_path
from spark_logbus.load.files.history import listed
from spark_logbus.load.files.hive import HiveTable
from spark_logbus.load.files.staging import Staging, list_and_count, tallied, write
from spark_logbus.load.files.warehouse import Warehouse
from spark_logbus.load.layout import DEFAULT_LAYOUT, Layout, LayoutChoice, settle
from spark_logbus.load.plan.window import ExistingRows, Window, below, inside
from spark_logbus.load.read.input import LoadInput
from spark_logbus.load.read.reading import partitioned
from spark_logbus.load.small_files import directory_of, worth_rewriting
from spark_logbus.load.step_timer import StepTimer
from spark_logbus.load.tally import ObservedTally, RecordTally, aggregates, tally_from, together
from spark_logbus.load.target import History, PlannedReplacement, StagedLoad
from spark_logbus.model import OffsetRange
from spark_logbus.plurals import plural

_DELTA_LOG: Final = "_delta_log"
#: Directory of an Iceberg table's versions, and the ends of the names of their files.
_ICEBERG_METADATA: Final = ("metadata", (".metadata.json", ".metadata.json.gz"))


class FileTarget(Warehouse):
    """A topic's warehouse, in the layout that it has or is to have. Not thread-safe."""

    def __init__(
        self, spark: SparkSession, root: str, config: TargetConfig, choice: LayoutChoice
    ) -> None:
        super().__init__(spark, root, config.topic)
        _refuse_tables_of_lakes(spark, root, self.path)
        self._compression = config.compression
        self._choice = choice
        self._table = (
            None if config.hive_table is None else HiveTable(spark, config.hive_table, self)
        )
        self._layout = DEFAULT_LAYOUT

    @property
    def dead_letters(self) -> str:
        return f"{self.path}/{DEAD_LETTERS}"

    def recover(self) -> Commit | None:
        last = super().recover()
        kept = None if last is None else last.layout
        self._layout = settle(kept, self._choice, where=self.path)
        self._check_table(self.schema(last))
        return last

    def _check_table(self, stored: StructType | None) -> None:
        if self._table is not None:
            self._table.check(self._layout, stored)

    def check_names(self, names: Sequence[str]) -> None:
        self._layout.check_names(names)

    def stage(self, load_input: LoadInput, last: Commit | None, steps: StepTimer) -> StagedLoad:
        return Staging(load_input, self._layout, self, steps).stage(last, self._check_table)

    def announce(self, last: Commit) -> None:
        if self._table is not None:
            self._table.register(last)

    def rewrite(self, last: Commit, *, least: int) -> Commit | None:
        names = worth_rewriting(self.file_sizes(), least=least, directory=directory_of)
        if not names:
            return None
        staging = Commit.new_staging_name(last.number + 1)
        path = self.staging(staging)
        with translated(f"rewrite {len(names)} files of {self.path}"):
            observed = ObservedTally(self.records_of(last, names))
            write(observed.frame, path, last.layout, self._compression)
            staged, files = list_and_count(self._spark, path, last.layout, staging)
        read = observed.tally()
        if staged != read:
            raise DataLossError(
                f"Expected {plural(read.records, 'record')}, which {len(names)} files of "
                f"{self.path} hold, staged {staged.records:,}; nothing was changed. Run the "
                "load again."
            )
        return last.rewritten(staging, files, replaces=names, schema=last.schema)

    def history(self, columns: Sequence[str] | None = None) -> History:
        found = listed(self, self._list_files)
        if found is None:
            layout = settle(None, self._choice, where=self.path)
            return History(None, None, (), layout.period_columns, partial(_stored, layout))
        layout, every = found.last.layout, found.files
        names = chosen(every.columns, columns, where=self.path)
        rows = every.where(below(found.last.ends)).select(*map(exact_column, names))
        made, stored = layout.period_columns, partial(_stored, layout)
        return History(found.last, rows, tuple(every.columns), made, stored, found.coming)

    def _list_files(self, last: Commit) -> DataFrame:
        """Lists all files as a data frame, which keeps to these."""
        schema = last.layout.table_schema(self.schema(last) or StructType())
        reader = (
            self._spark.read.format(last.layout.format.value)
            .schema(schema)
            .options(
                # A session may pass over files that are gone, and records would be missing.
                ignoreMissingFiles="false",
                ignoreCorruptFiles="false",
                # Spark takes two reads of a directory for one, and gives what is cached of the
                # first for the second, unless an option tells them apart; none has this name.
                logbusLoad=last.staging,
            )
        )
        with translated(f"list the files of {self.path}"):
            return reader.load(self.path)

    def find(self, last: Commit, ranges: tuple[OffsetRange, ...]) -> ExistingRows:
        condition, letters = inside(ranges), dict[str, RecordTally]()
        with translated(f"look for records in the files of {self.path}"):
            records = self._tallies_by_file("", last.layout, condition)
            if self.has_dead_letters():
                letters = self._tallies_by_file(DEAD_LETTERS, last.layout.undivided, condition)
            found = existing_rows(records, letters)
            kept_records = kept_letters = 0
            if records:
                kept_records = self.records_of(last, found.files).count() - found.records
            if letters:
                kept_letters = self.letters_of(last, found.letter_files).count()
                kept_letters -= found.dead_letters
        return replace(found, kept_records=kept_records, kept_letters=kept_letters)

    def _tallies_by_file(
        self, under: str, layout: Layout, condition: Column
    ) -> dict[str, RecordTally]:
        """Tallies the records that meet the condition, by the name of their file from the topic's
        directory on."""
        reader = self._spark.read.format(layout.format.value)
        rows = (
            reader.schema(tallied(layout.partition_columns))
            .load(f"{self.path}/{under}" if under else self.path)
            .where(condition)
            .groupBy(F.col("_metadata.file_path").alias("file"))
            .agg(*aggregates())
            .collect()
        )
        # Spark gives whole URLs, in which a directory's name is escaped once more.
        path = f"{local_path(self.path) or self.path}/"
        return {unquote(row["file"]).partition(path)[2]: tally_from(row.asDict()) for row in rows}

    def plan_replacement(
        self,
        load_input: LoadInput,
        last: Commit,
        window: Window,
        before: ExistingRows,
        steps: StepTimer,
    ) -> PlannedReplacement:
        staging = Staging(load_input, self._layout, self, steps)
        return staging.plan_replacement(last, window, before, self._check_table)


def _refuse_tables_of_lakes(spark: SparkSession, *places: str) -> None:
    """Raises ConfigError for a directory that is a Delta or an Iceberg table: its readers would not
    see a load's files there, clean-ups would delete them, and its rows are no warehouse's."""
    metadata, ends = _ICEBERG_METADATA
    for place in places:
        directory = HadoopDirectory(spark, place)
        if directory.exists(_DELTA_LOG):
            raise ConfigError(
                f"{place} is a Delta table and no directory of a warehouse. Name it with --delta, "
                "as a DeltaTable in Python, or name another directory."
            )
        if any(name.endswith(ends) for name in directory.names(metadata)):
            raise ConfigError(
                f"{place} is an Iceberg table and no directory of a warehouse. Name it with "
                "--iceberg, by its name in its catalogue, as an IcebergTable in Python, or name "
                "another directory."
            )


def _stored(layout: Layout, frame: DataFrame, wanted: Sequence[str] | None) -> DataFrame:
    """Records with the columns that the names of directories tell, where those are wanted."""
    if wanted is None or not {*wanted}.isdisjoint(layout.period_columns):
        frame = partitioned(frame, layout)
    # The name of a directory that has no text tells null.
    texts = (
        each.name
        for each in frame.schema.fields
        if each.name in layout.columns and isinstance(each.dataType, StringType)
    )
    frame = frame.withColumns({name: F.nullif(exact_column(name), F.lit("")) for name in texts})
    names = layout.table_schema(layout.stored_schema(frame.schema)).names
    return frame.select(*(exact_column(name) for name in names if name in frame.columns))


def existing_rows(
    records: Mapping[str, RecordTally], letters: Mapping[str, RecordTally]
) -> ExistingRows:
    """Sums up what files hold of a window, by name (pure)."""
    return ExistingRows(
        sum(each.records for each in records.values()),
        sum(each.records for each in letters.values()),
        together((*records.values(), *letters.values())),
        tuple(sorted(records)),
        tuple(sorted(letters)),
    )
