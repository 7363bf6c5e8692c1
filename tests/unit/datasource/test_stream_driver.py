"""The driver's part of a stream, against brokers and a group that are plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from spark_logbus.client import (
    Admin,
    Bootstrap,
    PartitionDescription,
    PartitionEnds,
    TopicDescription,
)
from spark_logbus.coordination import CommittedOffset
from spark_logbus.datasource.options import parse_options
from spark_logbus.datasource.read import RangePartition
from spark_logbus.datasource.stream_driver import StreamDriver
from spark_logbus.errors import (
    BrokerUnavailableError,
    DataLossError,
    InvalidOptionError,
    LogbusError,
    UnknownTopicError,
    UnsupportedVersionError,
)
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.offsets import DriverLink, GroupProgress, Patience

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@dataclass
class World:
    """Brokers, a group and the link to them, all in one."""

    topics: dict[str, tuple[str, list[tuple[int, int]]]] = field(default_factory=dict)
    group_positions: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    group_generation: int = 0
    rewinds: dict[TopicPartition, int] = field(default_factory=dict)
    commits: list[dict[TopicPartition, int]] = field(default_factory=list)
    faults: list[LogbusError] = field(default_factory=list)
    resets: int = 0
    has_group: bool = False

    # -- Admin
    def topics_(self) -> list[TopicDescription]:
        return [self._describe(name) for name in sorted(self.topics)]

    def _describe(self, name: str) -> TopicDescription:
        topic_id, spans = self.topics[name]
        partitions = {
            n: PartitionDescription(n, None, PartitionEnds(start, end, end, 0))
            for n, (start, end) in enumerate(spans)
        }
        return TopicDescription(name, topic_id, {}, partitions)

    def describe(self, names: list[str], *, ends: bool) -> dict[str, TopicDescription]:
        for name in names:
            if name not in self.topics:
                raise UnknownTopicError(name)
        return {name: self._describe(name) for name in names}

    def split_many(
        self, ranges: list[OffsetRange], *, target_bytes: int
    ) -> dict[OffsetRange, tuple[list[OffsetRange], int]]:
        return {one: ([one], one.count) for one in ranges}

    # -- GroupProgress
    def committed(self) -> dict[TopicPartition, CommittedOffset]:
        return self.group_positions

    def generation(self) -> int:
        return self.group_generation

    def rewound(self, *, after: int, up_to: int) -> dict[TopicPartition, int]:
        return self.rewinds

    def commit(
        self, positions: Mapping[TopicPartition, int], *, topic_ids: object, generation: int
    ) -> bool:
        if generation == self.group_generation:
            self.commits.append(dict(positions))
        return generation == self.group_generation

    # -- DriverLink
    def admin(self) -> Admin:
        if self.faults:
            raise self.faults.pop(0)
        return cast(Admin, _AdminView(self))

    def progress(self) -> GroupProgress | None:
        return cast(GroupProgress, self) if self.has_group else None

    def bootstrap(self) -> Bootstrap:
        return Bootstrap.of("h:1")

    def reset(self, fault: LogbusError) -> None:
        self.resets += 1

    def close(self) -> None:
        pass


class _AdminView:
    def __init__(self, world: World) -> None:
        self.topics = world.topics_
        self.describe = world.describe
        self.split_many = world.split_many


class Query:
    """What Spark does with a source, in its order, through JSON text."""

    def __init__(self, world: World, **options: str) -> None:
        parsed = parse_options({"zookeeper": "z:1", "subscribe": "t", **options}, streaming=True)
        world.has_group = parsed.group is not None
        self.driver = StreamDriver(
            parsed, link=cast(DriverLink, world), patience=Patience(pause=lambda _: None)
        )
        self.limit = parsed.max_offsets_per_trigger

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        answer = dict(self.driver.latest(json.loads(json.dumps(start)), max_records=self.limit))
        return cast(dict[str, Any], json.loads(json.dumps(answer)))

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
        planned = self.driver.partitions(start, end)
        return [str(cast(RangePartition, one).offset_range) for one in planned]


def two_partitions(*ends: int, topic_id: str = "id") -> dict[str, Any]:
    return {"t": (topic_id, [(0, end) for end in ends])}


def test_latest_is_fixed_by_the_first_micro_batch() -> None:
    world = World(two_partitions(5, 5))
    query = Query(world)
    start = query.driver.initial()
    first = query.latest(start)
    assert query.read(start, first) == []
    world.topics = two_partitions(8, 5)
    # The query fails before it commits, and is started again: Spark replays what it has written.
    again = Query(world)
    assert again.read(again.driver.initial(), first) == []
    second = again.latest(first)
    assert again.read(first, second) == ["t-0[5, 8)"]


def test_a_failed_first_micro_batch_is_replayed_exactly() -> None:
    world = World(two_partitions(5, 5))
    first = Query(world, startingOffsets="earliest").latest({"version": 1, "unresolved": True})
    world.topics = two_partitions(50, 50, 50)
    again = Query(world, startingOffsets='{"t":{"0":1,"1":1}}')
    start = again.driver.initial()
    assert again.read(start, first) == ["t-0[0, 5)", "t-1[0, 5)"]


def test_with_nothing_new_the_start_comes_back_as_it_was() -> None:
    query = Query(World(two_partitions(5, 5)))
    first = query.latest(query.driver.initial())
    assert json.dumps(query.latest(first)) == json.dumps(first)
    assert query.read(first, first) == []


def test_limits_and_their_end() -> None:
    world = World(two_partitions(4, 4))
    query = Query(world, startingOffsets="earliest", maxOffsetsPerTrigger="6")
    one = query.latest(query.driver.initial())
    two = query.latest(one)
    assert query.read({}, one) == ["t-0[0, 3)", "t-1[0, 3)"]
    assert query.read(one, two) == ["t-0[3, 4)", "t-1[3, 4)"]
    assert query.latest(two) == two


def test_available_now_ends_where_it_was_prepared() -> None:
    world = World(two_partitions(4, 4))
    query = Query(world, startingOffsets="earliest")
    query.driver.prepare_available_now()
    world.topics = two_partitions(9, 9, 9)
    end = query.latest(query.driver.initial())
    assert query.read({}, end) == ["t-0[0, 4)", "t-1[0, 4)"]
    assert query.latest(end) == end
    later = Query(world)
    later.driver.prepare_available_now()
    gap = later.latest(end)
    assert later.read(end, gap) == ["t-0[4, 9)", "t-1[4, 9)", "t-2[0, 9)"]


def test_available_now_from_latest_reads_nothing_although_records_come() -> None:
    world = World(two_partitions(4, 4))
    query = Query(world)
    query.driver.prepare_available_now()
    world.topics = two_partitions(9, 9)
    end = query.latest(query.driver.initial())
    assert query.read({}, end) == []
    assert query.latest(end) == end


def test_the_group_is_committed_when_spark_asks_for_more() -> None:
    world = World(two_partitions(4, 4))
    query = Query(world, startingOffsets="earliest", group="g")
    end = query.latest(query.driver.initial())
    assert world.commits == [{T0: 0, T1: 0}]
    query.latest(end)
    assert world.commits[-1] == {T0: 4, T1: 4}
    query.driver.commit(end)
    assert world.commits[-1] == {T0: 4, T1: 4}


def test_committed_starts_and_the_rest_at_earliest() -> None:
    world = World(two_partitions(4, 4), {T0: CommittedOffset(3, 0, "", "id")})
    query = Query(world, startingOffsets="committed", group="g")
    assert query.read({}, query.latest(query.driver.initial())) == ["t-0[3, 4)", "t-1[0, 4)"]


def test_offsets_committed_for_an_earlier_topic_are_a_loss() -> None:
    world = World(two_partitions(4, 4), {T0: CommittedOffset(3, 0, "", "other")})
    query = Query(world, startingOffsets="committed", group="g")
    with pytest.raises(DataLossError, match="deleted and created again"):
        query.latest(query.driver.initial())
    calm = Query(world, startingOffsets="committed", group="g", failOnDataLoss="false")
    assert calm.read({}, calm.latest(calm.driver.initial())) == ["t-0[0, 4)", "t-1[0, 4)"]


def test_a_rewind_is_followed_and_replayed_after_a_restart() -> None:
    world = World(two_partitions(4, 4))
    query = Query(world, startingOffsets="earliest", group="g")
    end = query.latest(query.driver.initial())
    world.group_generation, world.rewinds = 1, {T0: 1}
    world.commits.clear()
    rewound = query.latest(end)
    assert world.commits == []  # nothing is committed over the rewind
    assert query.read(end, rewound) == ["t-0[1, 4)"]
    again = Query(world, group="g")
    assert again.read(end, rewound) == ["t-0[1, 4)"]
    assert again.latest(rewound) == rewound
    assert world.commits == [{T0: 4, T1: 4}]


def test_rewinds_from_before_the_stream_joined_the_group_are_past() -> None:
    world = World(two_partitions(4, 4), group_generation=7, rewinds={T0: 0})
    query = Query(world, group="g")
    end = query.latest(query.driver.initial())
    assert query.latest(end) == end
    other = Query(world, group="h")
    world.group_generation = 9
    assert other.latest(end) == end


def test_passing_faults_do_not_end_the_query() -> None:
    world = World(two_partitions(4, 4), faults=[BrokerUnavailableError("away")] * 2)
    query = Query(world, startingOffsets="earliest")
    assert query.read({}, query.latest(query.driver.initial())) == ["t-0[0, 4)", "t-1[0, 4)"]
    assert world.resets == 2


def test_a_missing_topic_is_an_error_at_the_start_and_a_loss_later() -> None:
    world = World()
    query = Query(world)
    with pytest.raises(UnknownTopicError, match="no topic t; it has: none"):
        query.latest(query.driver.initial())
    world.topics = two_partitions(4)
    end = query.latest(query.driver.initial())
    world.topics = {}
    with pytest.raises(DataLossError, match="topic t was deleted"):
        query.latest(end)


def test_a_replayed_micro_batch_of_a_recreated_topic() -> None:
    world = World(two_partitions(4, 4))
    end = Query(world, startingOffsets="earliest").latest({"version": 1, "unresolved": True})
    world.topics = two_partitions(9, 9, topic_id="new")
    with pytest.raises(DataLossError, match="expected id id, got new"):
        Query(world).read({}, end)
    calm = Query(world, failOnDataLoss="false")
    assert calm.read({}, end) == []
    assert calm.read(end, calm.latest(end)) == ["t-0[0, 9)", "t-1[0, 9)"]


def test_a_checkpoint_of_a_newer_release() -> None:
    with pytest.raises(UnsupportedVersionError):
        Query(World(two_partitions(1))).latest({"version": 2})


def test_unusable_starts_end_the_query_with_the_option_named() -> None:
    query = Query(World(two_partitions(1, 1)), startingOffsets='{"t":{"0":0}}')
    with pytest.raises(InvalidOptionError, match=r"startingOffsets .* lacks t-1"):
        query.latest(query.driver.initial())


def test_the_report_shows_the_high_watermarks_and_the_bytes_behind() -> None:
    world = World(two_partitions(4, 6))
    query = Query(world, startingOffsets="earliest", maxOffsetsPerTrigger="5")
    assert query.driver.report() is None
    first = query.latest(query.driver.initial())
    ends = {"t": {"0": 4, "1": 6}}
    assert query.driver.report() == {"to": ends, "bytesBehind": 5}  # a record is a byte here
    second = query.latest(first)
    assert query.driver.report() == {"to": ends, "bytesBehind": 0}
    assert query.latest(second) == second
    world.faults.append(BrokerUnavailableError("nothing is behind, so nobody is asked"))
    assert query.driver.report() == {"to": ends, "bytesBehind": 0}


def test_the_report_of_available_now_tells_what_came_since() -> None:
    world = World(two_partitions(4))
    query = Query(world, startingOffsets="earliest")
    query.driver.prepare_available_now()
    world.topics = two_partitions(9, 9)
    query.latest(query.driver.initial())
    assert query.driver.report() == {"to": {"t": {"0": 9, "1": 9}}, "bytesBehind": 5}


def test_a_size_that_cannot_be_had_is_left_out_of_the_report() -> None:
    world = World(two_partitions(4))
    query = Query(world, startingOffsets="earliest", maxOffsetsPerTrigger="1")
    query.latest(query.driver.initial())
    world.faults.append(BrokerUnavailableError("away"))
    assert query.driver.report() == {"to": {"t": {"0": 4}}}
    assert query.driver.report() == {"to": {"t": {"0": 4}}, "bytesBehind": 3}
