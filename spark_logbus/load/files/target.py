"""Files in a directory by date, as the target of a load (see ``warehouse``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_logbus.audit.warehouse import Loads
from spark_logbus.load.commit import DEAD_LETTERS, Commit
from spark_logbus.load.config import LoadConfig
from spark_logbus.load.files.hive_table import HiveTable
from spark_logbus.load.files.restaging import FileReplacement, plan_replacement
from spark_logbus.load.files.small_files import stage_rewrite
from spark_logbus.load.files.staging import Staging
from spark_logbus.load.files.warehouse import Warehouse
from spark_logbus.load.files.window import find
from spark_logbus.load.layout import DEFAULT_LAYOUT, settle
from spark_logbus.load.plan.window import Window
from spark_logbus.load.plan.window_rows import ExistingRows
from spark_logbus.load.read.input import LoadInput
from spark_logbus.load.steps import StepTimer
from spark_logbus.load.target import StagedLoad
from spark_logbus.model import OffsetRange

_ROWS: Final = "partition int, offset bigint, timestamp timestamp"


class FileTarget:
    """A topic's directory in a warehouse, in the layout that it has or is to have. Not
    thread-safe."""

    def __init__(self, spark: SparkSession, root: str, config: LoadConfig) -> None:
        self._spark = spark
        self._config = config
        self._warehouse = Warehouse(spark, root, config.topic)
        self._table = (
            None
            if config.hive_table is None
            else HiveTable(spark, config.hive_table, self._warehouse)
        )
        self._layout = DEFAULT_LAYOUT

    @property
    def path(self) -> str:
        return self._warehouse.path

    @property
    def dead_letters(self) -> str:
        return f"{self.path}/{DEAD_LETTERS}"

    def recover(self) -> Commit | None:
        last = self._warehouse.recover()
        kept = None if last is None else last.layout
        self._layout = settle(kept, self._config.layout, where=self.path)
        self._check_table(self._warehouse.schema(last))
        return last

    def _check_table(self, stored: StructType | None) -> None:
        if self._table is not None:
            self._table.check(self._layout, stored)

    def check_names(self, names: Sequence[str]) -> None:
        self._layout.check_names(names)

    def stage(self, incoming: LoadInput, last: Commit | None, steps: StepTimer) -> StagedLoad:
        staging = Staging(incoming, self._layout, self._warehouse, steps)
        return staging.stage(last, self._check_table)

    def rows(self, staged: Commit | None = None) -> DataFrame:
        return self._warehouse.rows(_ROWS, staged=staged)

    def prepare(self, commit: Commit) -> None:
        self._warehouse.prepare(commit)

    def commit(self, commit: Commit) -> None:
        self._warehouse.commit(commit)

    def publish(self, commit: Commit) -> None:
        self._warehouse.publish(commit)

    def announce(self, last: Commit) -> None:
        if self._table is not None:
            self._table.register(last)

    def rewrite(self, last: Commit) -> Commit | None:
        least, compression = self._config.compact, self._config.compression
        if least is None:
            return None
        return stage_rewrite(
            self._spark, self._warehouse, last, least=least, compression=compression
        )

    def loads(self) -> Loads:
        return Loads.from_commits(self._warehouse.commit_texts())

    def find(self, last: Commit, ranges: tuple[OffsetRange, ...]) -> ExistingRows:
        return find(self._spark, self._warehouse, last, ranges)

    def plan_replacement(
        self,
        incoming: LoadInput,
        last: Commit,
        window: Window,
        before: ExistingRows,
        steps: StepTimer,
    ) -> FileReplacement:
        staging = Staging(incoming, self._layout, self._warehouse, steps)
        planned = plan_replacement(staging, last, window, before)
        self._check_table(planned.schema)
        return planned
