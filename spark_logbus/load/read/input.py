"""Input of a load, whatever its target: the records of its ranges as columns, those that do not
decode apart from them, and the proof that all of them have arrived."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_logbus.errors import DataLossError
from spark_logbus.load.config import TargetConfig
from spark_logbus.load.errors import translated
from spark_logbus.load.plan.ranges import LoadSource
from spark_logbus.load.read.direct import DirectRead
from spark_logbus.load.read.reading import (
    Decoding,
    PlannedRead,
    decoded,
    read,
    without_dead_letters,
)
from spark_logbus.load.read.shuffle import most_directories
from spark_logbus.load.read.values import UNDECODABLE, columns_of_schema
from spark_logbus.load.step_timer import StepTimer
from spark_logbus.load.tally import NONE, ConditionCount, ObservedTally, RecordTally
from spark_logbus.plurals import plural


@dataclass(frozen=True, slots=True)
class LoadInput:
    """Records that one load reads. ``read`` plans it, and counts rows as Spark reads them."""

    spark: SparkSession
    config: TargetConfig
    decoding: Decoding
    source: LoadSource
    allow_gaps: bool = False

    def read(self) -> DecodedRead:
        """Plans the read; nothing is read before an action on its ``frame``."""
        planned = read(
            self.spark, self.source.ranges, self.config.zookeeper, self.config.topic, self.decoding
        )
        return DecodedRead(self, planned)


class DecodedRead:
    """Records on their way into a target. Not thread-safe."""

    def __init__(self, load_input: LoadInput, planned: PlannedRead) -> None:
        self._input = load_input
        self._planned = planned
        self._counted: tuple[RecordTally, int] | None = None
        self._observed = ObservedTally(planned.frame)
        every = decoded(self._observed.frame, load_input.decoding)
        apart = load_input.decoding.dead_letters
        self._dead = ConditionCount(every, f"{UNDECODABLE} is not null" if apart else None)
        #: Records that decode, or all of them where none are kept apart. To be written once.
        self.frame = without_dead_letters(self._dead.frame, load_input.decoding)

    @property
    def tasks(self) -> int:
        """The number of tasks that read."""
        return len(self._planned.partitions)

    @property
    def size_bytes(self) -> int:
        """Approximate size of the records in the log, in bytes."""
        return sum(each.size_bytes for each in self._planned.partitions)

    def sample(self) -> DataFrame:
        """Reads some of what ``frame`` holds, from places that are spread over all of it."""
        decoding = self._input.decoding
        return without_dead_letters(decoded(self._planned.sample(), decoding), decoding)

    def gathers(
        self,
        columns: Sequence[str],
        divide: Callable[[DataFrame], DataFrame],
        steps: StepTimer,
    ) -> bool:
        """Decides whether records are brought together by ``columns``, which ``divide`` adds to
        them, before they are written: files would be small if each task wrote what it reads."""
        most = most_directories(self.size_bytes, tasks=self.tasks)
        # Of a compacted topic a sample by offsets would find few records.
        if most == 0 or self._input.source.compacted:
            return True
        if not columns:
            return False
        with steps.step("sample"), translated("look at some of the records"):
            some = divide(self.sample())
            return len(set(some.select(*columns).collect())) > most

    def direct(self) -> DirectRead | None:
        """Returns the same records to be read and written in one process; None where Spark has to
        make something of them. Whoever writes them so calls ``counted``."""
        planned, decoding = self._planned, self._input.decoding
        if decoding.json is not None or not planned.partitions:
            return None
        schema = planned.schema if planned.avro is None else planned.avro.added_to(planned.schema)
        fields = columns_of_schema(planned.schema) if decoding.has_schema else {}
        return DirectRead(planned.reader, planned.partitions, planned.avro, schema, fields)

    def counted(self, tally: RecordTally, dead: int) -> None:
        """Takes what tasks have counted themselves of the records that they read."""
        self._counted = tally, dead

    def dead(self) -> int:
        """The number of records that did not decode, once ``frame`` is written."""
        return self._dead.count() if self._counted is None else self._counted[1]

    def letters(self) -> DataFrame:
        """The records that did not decode, with the reason. They are read again: there are few or
        none of them, and they have columns of their own."""
        undecodable = F.col(UNDECODABLE)
        return (
            decoded(self._planned.frame, self._input.decoding)
            .where(undecodable.isNotNull())
            .select(
                F.lit(self._input.config.topic).alias("topic"),
                "partition",
                "offset",
                "key",
                undecodable["value"].alias("value"),
                "timestamp",
                "headers",
                undecodable["reason"].alias("reason"),
            )
        )

    def tally(self) -> RecordTally:
        """Tally of all records that were read, once ``frame`` is written."""
        return self._observed.tally() if self._counted is None else self._counted[0]

    def check(self, staged: RecordTally) -> None:
        """Raises DataLossError unless exactly what was read is staged, and all that had to be read
        was."""
        source, topic = self._input.source, self._input.config.topic
        self.check_staged(staged)
        offsets = sum(r.count for r in source.ranges)
        with_gaps = source.compacted or self._input.allow_gaps
        if staged.records > offsets or (staged.records < offsets and not with_gaps):
            where = ", ".join(map(str, source.ranges))
            raise DataLossError(
                f"Expected {plural(offsets, 'record')} in {where}, found {staged.records:,}; "
                f"nothing was committed. Topic {topic} is not compacted, so that each offset has "
                "its record. If it was compacted at one time, use --allow-gaps; if not, check it "
                "with `logbus verify`."
            )

    def check_staged(self, staged: RecordTally, *, kept: RecordTally = NONE) -> None:
        """Raises DataLossError unless exactly what was read is staged, beside what was ``kept``."""
        handed_over = self.tally().with_others(kept)
        if staged != handed_over:
            where = ", ".join(map(str, self._input.source.ranges))
            raise DataLossError(
                f"Expected {plural(handed_over.records, 'record')}, as read of {where}, staged "
                f"{staged.records:,}{'' if staged.records != handed_over.records else ' others'}; "
                "nothing was committed. Run the load again, and if it persists, check the topic "
                "with `logbus dump`."
            )
