"""Reads the present records of a topic once: first those that can be had, then reports the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from spark_logbus.cli.output import console
from spark_logbus.errors import BrokerUnavailableError, LogbusError, OffsetOutOfRangeError

if TYPE_CHECKING:
    from spark_logbus.client import Admin, Cluster, FetchedBatch
    from spark_logbus.client.fetch.plain_reader import PlainReader
    from spark_logbus.model import OffsetSpec, TopicPartition
    from spark_logbus.offsets.snapshot import Span

_SHOWN: Final = 10  # partitions named in one message


@dataclass(frozen=True, slots=True)
class Wanted:
    """Partitions of one topic, and where to begin."""

    topic: str
    topic_id: str
    partitions: tuple[TopicPartition, ...]
    start: OffsetSpec
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Spans:
    """Offsets to read of the partitions whose leaders answer; and why the others do not."""

    found: dict[TopicPartition, Span]
    away: dict[TopicPartition, LogbusError]


def spans(admin: Admin, wanted: Wanted, topic_partitions: Sequence[TopicPartition]) -> Spans:
    """The present offsets of the partitions. OffsetOutOfRangeError for a start that none has."""
    from spark_logbus.model import AtOffset, Earliest, Latest
    from spark_logbus.offsets.snapshot import Span

    topic_ids = {wanted.topic: wanted.topic_id}
    firsts = admin.find_offsets(dict.fromkeys(topic_partitions, Earliest()), topic_ids=topic_ids)
    ends = admin.find_offsets(dict.fromkeys(firsts.found, Latest()), topic_ids=topic_ids)
    there = {
        topic_partition: Span(
            firsts.found[topic_partition] or 0, end or 0, ends.lost.get(topic_partition, ())
        )
        for topic_partition, end in ends.found.items()
    }
    away = {**firsts.away, **ends.away}
    match wanted.start:
        case AtOffset(offset):
            whole = not away and len(topic_partitions) == len(wanted.partitions)
            _check_offset(offset, there, whole=whole)
            found = {
                topic_partition: replace(span, start=min(offset, span.end))
                for topic_partition, span in there.items()
            }
        case Earliest():
            found = there
        case spec:
            starts = admin.find_offsets(dict.fromkeys(there, spec), topic_ids=topic_ids)
            away |= starts.away
            found = {}
            for topic_partition, start in starts.found.items():
                span = there[topic_partition]
                first = span.end if start is None else span.clamp(start)  # no record is that young
                found[topic_partition] = replace(span, start=first)
    return Spans(found, away)


def _check_offset(offset: int, there: Mapping[TopicPartition, Span], *, whole: bool) -> None:
    """Partitions that end before ``offset`` begin at their end; all of them cannot."""
    last = max((span.end for span in there.values()), default=0)
    if offset > last and whole:
        ends = {topic_partition: span.end for topic_partition, span in there.items()}
        raise OffsetOutOfRangeError(
            f"--start is {offset:,}, but the last offset is {last - 1:,} ({_shown(ends)}). Use a "
            "smaller one, or latest."
        )
    early = {
        topic_partition: span.start
        for topic_partition, span in there.items()
        if offset < span.start
    }
    if early:
        raise OffsetOutOfRangeError(
            f"--start is {offset:,}, but retention deleted what was before {_shown(early)}. Use a "
            "larger one, or earliest."
        )


def _shown(offsets: Mapping[TopicPartition, int]) -> str:
    return ", ".join(
        f"{topic_partition}: {offset:,}" for topic_partition, offset in sorted(offsets.items())
    )


def until_now(cluster: Cluster, admin: Admin, wanted: Wanted) -> Iterator[FetchedBatch]:
    """The records that there are. Partitions whose broker is away are told of at once, and tried
    again behind the others; BrokerUnavailableError at the end for what is missing then."""
    reading = _Reading(cluster, admin, wanted)
    yield from reading.read(wanted.partitions)
    if reading.away:
        yield from reading.read(list(reading.away))
    if reading.away:
        raise reading.missing()


class _Reading:
    """Rounds over the partitions of one topic. Not thread-safe."""

    def __init__(self, cluster: Cluster, admin: Admin, wanted: Wanted) -> None:
        self._cluster = cluster
        self._admin = admin
        self._wanted = wanted
        self._left: dict[TopicPartition, Span] = {}  # of those that were begun
        self._told: set[TopicPartition] = set()
        self.away: dict[TopicPartition, LogbusError] = {}  # not read whole in the last round

    def read(self, topic_partitions: Sequence[TopicPartition]) -> Iterator[FetchedBatch]:
        """The records of ``topic_partitions`` that can be had, one partition after the other."""
        from spark_logbus.client import RangeReader
        from spark_logbus.model import OffsetRange

        # After the ends are known, so that it knows the schemas of what is before them.
        now = spans(self._admin, self._wanted, topic_partitions)
        values = self._value_reader()
        self.away = dict(now.away)
        self._tell()
        failed: dict[str, LogbusError] = {}  # by leader: it is not waited for once more
        for topic_partition, found in now.found.items():
            leader = self._cluster.leader_name(topic_partition)
            if leader in failed:
                self.away[topic_partition] = failed[leader]
                continue
            span = self._left.setdefault(topic_partition, found)
            try:
                for piece in span.pieces(span.start, span.end):
                    self._tell_lost(topic_partition, span, piece[0])
                    wanted = OffsetRange(topic_partition, *piece)
                    with RangeReader(
                        self._cluster, wanted, topic_id=self._wanted.topic_id, values=values
                    ) as reader:
                        for fetched in reader:
                            self._left[topic_partition] = replace(span, start=fetched.next_offset)
                            yield fetched
            except LogbusError as error:
                if not error.retriable:
                    raise
                failed[leader] = self.away[topic_partition] = error
                self._tell()

    def _tell_lost(self, topic_partition: TopicPartition, span: Span, start: int) -> None:
        """Say so where the records before ``start`` are lost."""
        for lost in span.lost:
            if lost.end == start:
                console(stderr=True).print(
                    f"Warning: the records of {topic_partition} from offset {lost.start:,} on were "
                    "lost with a part of the log that was given up; those from offset "
                    f"{lost.end:,} on follow.",
                    style="yellow",
                )

    def _value_reader(self) -> PlainReader | None:
        """Returns the reader of values of a topic with a schema, else None."""
        from spark_logbus.topic_schemas import VALUE_ENCODING

        if VALUE_ENCODING not in self._wanted.config:
            return None
        from spark_logbus.client.consumer.value_readers import look_up_reader

        return look_up_reader(self._cluster, self._wanted.topic, self._wanted.config)

    def _tell(self) -> None:
        for leader, (topic_partitions, error) in self._by_leader().items():
            if self._told.issuperset(topic_partitions):
                continue
            self._told.update(topic_partitions)
            console(stderr=True).print(
                f"Warning: cannot read {_named(topic_partitions)} at the moment: waiting for "
                f"{leader}. {error} "
                "What the other brokers have is printed first.",
                style="yellow",
            )

    def missing(self) -> BrokerUnavailableError:
        """The error to raise when nothing else is left to be read."""
        parts = [
            f"{_named(topic_partitions)} wait{'s' if len(topic_partitions) == 1 else ''} for "
            f"{leader}"
            for leader, (topic_partitions, _) in self._by_leader().items()
        ]
        return BrokerUnavailableError(
            f"Not everything was read: {'; '.join(parts)}. Start that broker and read what is "
            "missing with --partition, or use --follow, which waits for it."
        )

    def _by_leader(self) -> dict[str, tuple[list[TopicPartition], LogbusError]]:
        by_leader: dict[str, tuple[list[TopicPartition], LogbusError]] = {}
        for topic_partition, error in sorted(self.away.items(), key=lambda each: each[0]):
            by_leader.setdefault(self._cluster.leader_name(topic_partition), ([], error))[0].append(
                topic_partition
            )
        return by_leader


def _named(topic_partitions: Sequence[TopicPartition]) -> str:
    more = f" and {len(topic_partitions) - _SHOWN} more" if len(topic_partitions) > _SHOWN else ""
    return ", ".join(map(str, topic_partitions[:_SHOWN])) + more
