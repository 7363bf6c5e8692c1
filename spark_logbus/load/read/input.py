"""What comes in with a load, whatever its target: the records of its ranges as columns, what does
not decode apart from them, and the proof that all of it has arrived."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_logbus.errors import DataLossError
from spark_logbus.load.config import LoadConfig
from spark_logbus.load.plan.ranges import Source
from spark_logbus.load.read.reading import Decoding, PlannedRead, decoded, read
from spark_logbus.load.read.values import UNDECODABLE
from spark_logbus.load.tally import NONE, ConditionCount, ObservedTally, Tally


@dataclass(frozen=True, slots=True)
class LoadInput:
    """The records of one load, of which ``read`` counts what passes through."""

    spark: SparkSession
    config: LoadConfig
    decoding: Decoding
    source: Source

    def read(self) -> DecodedRead:
        """Plans the read; nothing is read before an action on its ``frame``."""
        planned = read(
            self.spark, self.source.ranges, self.config.zookeeper, self.config.topic, self.decoding
        )
        return DecodedRead(self, planned)


@dataclass(slots=True)
class DecodedRead:
    """Records on their way into a target."""

    incoming: LoadInput
    planned: PlannedRead
    records: DataFrame = field(init=False)  # before they are decoded
    frame: DataFrame = field(init=False)
    """Those that decode, or all of them where none are kept apart. To be written once."""
    _observed: ObservedTally = field(init=False)
    _dead: ConditionCount = field(init=False)

    def __post_init__(self) -> None:
        decoding = self.incoming.decoding
        self.records = self.planned.frame
        self._observed = ObservedTally(self.records)
        every = decoded(self._observed.frame, decoding)
        apart = decoding.dead_letters
        self._dead = ConditionCount(every, f"{UNDECODABLE} is not null" if apart else None)
        self.frame = _without_dead(self._dead.frame) if apart else self._dead.frame

    @property
    def tasks(self) -> int:
        """The number of tasks that read."""
        return len(self.planned.partitions)

    @property
    def size_bytes(self) -> int:
        """Of all records in the log, about."""
        return sum(each.size_bytes for each in self.planned.partitions)

    def sample(self) -> DataFrame:
        """Some of what ``frame`` holds, from places that are spread over all of it."""
        decoding = self.incoming.decoding
        some = decoded(self.planned.sample(), decoding)
        return _without_dead(some) if decoding.dead_letters else some

    def dead(self) -> int:
        """The number of records that did not decode, once ``frame`` is written."""
        return self._dead.count()

    def letters(self) -> DataFrame:
        """The records that did not decode, with the reason. They are read again: there are few or
        none of them, and they have columns of their own."""
        undecodable = F.col(UNDECODABLE)
        return (
            decoded(self.records, self.incoming.decoding)
            .where(undecodable.isNotNull())
            .select(
                F.lit(self.incoming.config.topic).alias("topic"),
                "partition",
                "offset",
                "key",
                undecodable["value"].alias("value"),
                "timestamp",
                "headers",
                undecodable["reason"].alias("reason"),
            )
        )

    def tally(self) -> Tally:
        """Of all records that were read, once ``frame`` is written."""
        return self._observed.tally()

    def check(self, staged: Tally) -> None:
        """DataLossError unless exactly what was read is staged, and all that had to be was read."""
        source, config = self.incoming.source, self.incoming.config
        self.check_staged(staged)
        offsets = sum(r.count for r in source.ranges)
        with_gaps = source.compacted or config.allow_gaps
        if staged.records > offsets or (staged.records < offsets and not with_gaps):
            where = ", ".join(map(str, source.ranges))
            raise DataLossError(
                f"Expected {offsets:,} records in {where}, found {staged.records:,}; nothing was "
                f"committed. Topic {config.topic} is not compacted, so that each offset has "
                "its record. If it was compacted at one time, use --allow-gaps; if not, check it "
                "with `logbus verify`."
            )

    def check_staged(self, staged: Tally, *, kept: Tally = NONE) -> None:
        """DataLossError unless exactly what was read is staged, beside what was ``kept``."""
        handed_over = self.tally().with_others(kept)
        if staged != handed_over:
            where = ", ".join(map(str, self.incoming.source.ranges))
            raise DataLossError(
                f"Expected {handed_over.records:,} records, which were read of {where}, staged "
                f"{staged.records:,}{'' if staged.records != handed_over.records else ' others'}; "
                "nothing was committed. Run the load again, and if it persists, check the topic "
                "with `logbus dump`."
            )


def _without_dead(frame: DataFrame) -> DataFrame:
    return frame.where(f"{UNDECODABLE} is null").drop(UNDECODABLE)
