"""Brokers, a group and the connections to them as plain values, and a query on them: for tests of
what a driver decides."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from spark_logbus.client import Admin, Bootstrap, PartitionDescription, TopicDescription
from spark_logbus.coordination.groups.offsets import CommittedOffset
from spark_logbus.datasource.columns import ColumnChoice, full_schema
from spark_logbus.datasource.input_partition import RangesPartition
from spark_logbus.datasource.options import parse_options
from spark_logbus.datasource.stream_driver import StreamDriver
from spark_logbus.errors import LogbusError, UnknownTopicError
from spark_logbus.model import AtTimestamp, OffsetRange, OffsetSpec, RewindMark, TopicPartition
from spark_logbus.protocol import PartitionEnds
from spark_logbus.retry import RetryPolicy
from spark_logbus.schemas.registry import SchemaRegistry
from spark_logbus.spark.driver import DriverConnections
from spark_logbus.spark.group import GroupCommitter
from tests.fakes.clock import ManualClock
from tests.fakes.executor import InlineExecutor

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@dataclass
class World:
    """Brokers, a group and the connections to them, all in one."""

    topics: dict[str, tuple[str, list[tuple[int, int]]]] = field(default_factory=dict)
    group_positions: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    group_epoch: int = 0
    group_token: str = ""
    rewinds: dict[TopicPartition, int] = field(default_factory=dict)
    commits: list[dict[TopicPartition, int]] = field(default_factory=list)
    faults: list[LogbusError] = field(default_factory=list)
    has_group: bool = False
    refusal: LogbusError | None = None
    held: list[set[str]] = field(default_factory=list)
    replicated: bool = False
    #: Spans that are told when all brokers were heard, in place of those of a leader of before.
    newest: list[tuple[int, int]] | None = None
    heard: int = 0
    asked_rewinds: list[tuple[RewindMark, RewindMark]] = field(default_factory=list)

    # -- Admin
    def topics_(self) -> list[TopicDescription]:
        return [self._describe(name) for name in sorted(self.topics)]

    def _describe(self, name: str) -> TopicDescription:
        topic_id, spans = self.topics[name]
        partitions = {
            n: PartitionDescription(
                n,
                None,
                PartitionEnds(start, end, end, 0),
                replicas=(1, 2) if self.replicated else (),
            )
            for n, (start, end) in enumerate(spans)
        }
        return TopicDescription(name, topic_id, {}, partitions)

    def hear_all(self, names: Iterable[str]) -> None:
        self.heard += 1
        for name in names:
            if self.newest is not None:
                self.topics[name] = (self.topics[name][0], self.newest)

    def describe(self, names: list[str], *, ends: bool) -> dict[str, TopicDescription]:
        for name in names:
            if name not in self.topics:
                raise UnknownTopicError(name)
        return {name: self._describe(name) for name in names}

    def split_many(
        self, ranges: list[OffsetRange], *, target_bytes: int | Mapping[OffsetRange, int]
    ) -> dict[OffsetRange, tuple[list[OffsetRange], int]]:
        """Records of one byte, each a record batch."""
        split = {}
        for one in ranges:
            if one.topic_partition.topic not in self.topics:
                raise UnknownTopicError(one.topic_partition.topic)
            size = target_bytes if isinstance(target_bytes, int) else target_bytes[one]
            bounds = [*range(one.start, one.end, size), one.end]
            pieces = [OffsetRange(one.topic_partition, *p) for p in itertools.pairwise(bounds)]
            split[one] = (pieces, one.count)
        return split

    def list_offsets(
        self, specs: Mapping[TopicPartition, OffsetSpec]
    ) -> dict[TopicPartition, int | None]:
        """Offset n is of microsecond n."""
        found: dict[TopicPartition, int | None] = {}
        for topic_partition, spec in specs.items():
            start, end = self.topics[topic_partition.topic][1][topic_partition.partition]
            assert isinstance(spec, AtTimestamp)
            at = max(start, spec.timestamp_us)
            found[topic_partition] = at if at < end else None
        return found

    # -- GroupCommitter
    def committed(self) -> dict[TopicPartition, CommittedOffset]:
        return self.group_positions

    def hold(self, topics: Iterable[str]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.held.append(set(topics))

    def mark(self) -> RewindMark:
        return RewindMark(self.group_epoch, self.group_token)

    def rewound(self, *, after: RewindMark, up_to: RewindMark) -> dict[TopicPartition, int]:
        self.asked_rewinds.append((after, up_to))
        return self.rewinds

    def commit(
        self, positions: Mapping[TopicPartition, int], *, topic_ids: object, mark: RewindMark
    ) -> bool:
        if mark == self.mark():
            self.commits.append(dict(positions))
        return mark == self.mark()

    # -- DriverConnections
    def admin(self) -> Admin:
        if self.faults:
            raise self.faults.pop(0)
        return cast(Admin, _AdminView(self))

    def progress(self) -> GroupCommitter | None:
        return cast(GroupCommitter, self) if self.has_group else None

    def bootstrap(self, topics: Iterable[str]) -> Bootstrap:
        return Bootstrap.of("h:1")

    def registry(self) -> SchemaRegistry:
        raise AssertionError("topics without a schema need no registry")

    def close(self) -> None:
        pass


class _AdminView:
    def __init__(self, world: World) -> None:
        self.topics = world.topics_
        self.describe = world.describe
        self.hear_all = world.hear_all
        self.split_many = world.split_many
        self.list_offsets = world.list_offsets


class Query:
    """Query that does what Spark does with a source, in its order, through JSON text."""

    def __init__(self, world: World, **options: str) -> None:
        given = {"zookeeper": "z:1", "subscribe": "t", **options}
        given = {name: value for name, value in given.items() if value}
        parsed = parse_options(given, streaming=True)
        world.has_group = parsed.group is not None
        self.clock = ManualClock(wall_us=0)
        connections = cast(DriverConnections, world)
        columns = ColumnChoice(full_schema(include_headers=False))
        self.driver = StreamDriver(
            parsed,
            connections=connections,
            columns=columns,
            background=InlineExecutor(),
            prefetch=False,
            retry_policy=RetryPolicy(clock=self.clock, pause=self.clock.advance),
            clock=self.clock,
        )

    def latest(self, start: dict[str, Any], *, limited: bool = True) -> dict[str, Any]:
        answer = dict(self.driver.latest(json.loads(json.dumps(start)), limited=limited))
        return cast(dict[str, Any], json.loads(json.dumps(answer)))

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
        planned = self.driver.plan_input(start, end).partitions
        return [str(r) for one in planned for r in cast(RangesPartition, one).ranges]


def two_partitions(*ends: int, topic_id: str = "id") -> dict[str, Any]:
    return {"t": (topic_id, [(0, end) for end in ends])}
