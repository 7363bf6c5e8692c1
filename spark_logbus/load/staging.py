"""What a load brings, written where nobody sees it and checked there, before it is committed."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_logbus.errors import DataLossError
from spark_logbus.load.commits import DEAD_LETTERS, Commit
from spark_logbus.load.config import LoadConfig
from spark_logbus.load.hadoop import translated
from spark_logbus.load.layout import Layout, Period
from spark_logbus.load.planning import Source
from spark_logbus.load.reading import Decoding, decoded, partitioned, read
from spark_logbus.load.schema import merged
from spark_logbus.load.staged_files import look, write
from spark_logbus.load.steps import Steps
from spark_logbus.load.tally import Counted, Observed, Tally
from spark_logbus.load.values import UNDECODABLE
from spark_logbus.load.warehouse import Warehouse
from spark_logbus.model import OffsetRange


@dataclass(frozen=True, slots=True)
class Staged:
    """A load that is ready to be committed, and what the report says of it."""

    commit: Commit
    size_bytes: int
    without_event_time: int


@dataclass(frozen=True, slots=True)
class Staging:
    """Writes what is new where nobody sees it, and makes sure of it."""

    spark: SparkSession
    config: LoadConfig
    decoding: Decoding
    layout: Layout
    warehouse: Warehouse
    source: Source
    steps: Steps

    def stage(self, last: Commit | None) -> Staged:
        """The commit that would publish what is new."""
        config, layout, decoding = self.config, self.layout, self.decoding
        number = last.number + 1 if last else 1
        name = Commit.staging_name(number, uuid.uuid4().hex)
        path = self.warehouse.staging(name)
        with self.steps.step("plan the read"), translated("plan the read"):
            records = read(self.spark, self.source.ranges, config.zookeeper, config.topic, decoding)
            observed = Observed(records)
            every = decoded(observed.frame, decoding)
            dead = Counted(
                every, f"{UNDECODABLE} is not null" if decoding.dead_letters else "false"
            )
            good = dead.frame
            if decoding.dead_letters:
                good = good.where(f"{UNDECODABLE} is null").drop(UNDECODABLE)
            good = partitioned(good, layout)
            timeless = Counted(good, _without_event_time(layout))
            before = self.warehouse.schema(last) or StructType()
            schema = merged(before, layout.stored_schema(good.schema), where=self.warehouse.path)
        with self.steps.step("write"), translated(f"stage load {number} in {path}"):
            write(timeless.frame, path, layout, config.compression)
        with self.steps.step("check"), translated(f"count what was staged in {path}"):
            staged, files = look(self.spark, path, layout, name)
        letters = Tally(0, 0)
        if dead.count():
            # Read again, as there are few or none of them, in files with columns of their own.
            with self.steps.step("dead letters"), translated(f"stage dead letters in {path}"):
                letters, more = self._keep_apart(decoded(records, decoding), name)
                files = (*files, *more)
        handed_over = observed.tally()
        self._check(self.source.ranges, handed_over, staged.with_others(letters))
        commit = Commit(
            number,
            name,
            self.source.topic_id,
            tuple(r for r in self.source.ranges if r.count),
            {r.topic_partition.partition: r.end for r in self.source.ranges},
            staged.records,
            files,
            schema,
            layout,
            letters.records,
        )
        return Staged(commit, self.warehouse.size_bytes(name), timeless.count())

    def _keep_apart(self, frame: DataFrame, name: str) -> tuple[Tally, tuple[str, ...]]:
        """Stage the records of ``frame`` that did not decode; what they are, and their files."""
        path = f"{self.warehouse.staging(name)}/{DEAD_LETTERS}"
        undecodable = F.col(UNDECODABLE)
        letters = frame.where(undecodable.isNotNull()).select(
            F.lit(self.config.topic).alias("topic"),
            "partition",
            "offset",
            "key",
            undecodable["value"].alias("value"),
            "timestamp",
            "headers",
            undecodable["reason"].alias("reason"),
        )
        undivided = Layout(period=Period.NONE, format=self.layout.format)
        write(letters, path, undivided, self.config.compression)
        return look(self.spark, path, undivided, name)

    def _check(self, ranges: list[OffsetRange], handed_over: Tally, staged: Tally) -> None:
        """DataLossError unless exactly what was read is staged, and all that had to be was read."""
        where = ", ".join(map(str, ranges))
        if staged != handed_over:
            raise DataLossError(
                f"Expected {handed_over.records:,} records, which were read of {where}, staged "
                f"{staged.records:,}{'' if staged.records != handed_over.records else ' others'}; "
                "nothing was committed. Run the load again, and if it persists, check the topic "
                "with `logbus dump`."
            )
        offsets = sum(r.count for r in ranges)
        with_gaps = self.source.compacted or self.config.allow_gaps
        if staged.records > offsets or (staged.records < offsets and not with_gaps):
            raise DataLossError(
                f"Expected {offsets:,} records in {where}, found {staged.records:,}; nothing was "
                f"committed. Topic {self.config.topic} is not compacted, so that each offset has "
                "its record. If it was compacted at one time, use --allow-gaps; if not, check it "
                "with `logbus verify`."
            )


def _without_event_time(layout: Layout) -> str:
    """The condition that holds for records whose event time is null."""
    return f"`{layout.period_columns[0]}` is null" if layout.period_columns else "false"
