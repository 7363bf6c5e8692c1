"""The driver's part of a stream, against brokers and a group that are plain values."""

from __future__ import annotations

import json

import pytest

from spark_logbus.coordination.groups.offsets import CommittedOffset
from spark_logbus.datasource.stream_offset import UNRESOLVED
from spark_logbus.errors import (
    BrokerUnavailableError,
    DataLossError,
    GroupHeldError,
    InvalidOptionError,
)
from spark_logbus.model import RewindMark
from tests.unit.datasource.world import T0, T1, Query, World, two_partitions


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


def test_a_minimum_is_waited_for_until_the_delay_is_over() -> None:
    world = World(two_partitions(4, 4))
    query = Query(
        world, startingOffsets="earliest", minOffsetsPerTrigger="5", maxTriggerDelay="10 s"
    )
    one = query.latest(query.driver.initial())
    assert query.read({}, one) == ["t-0[0, 4)", "t-1[0, 4)"]
    world.topics = two_partitions(6, 6)
    assert query.latest(one) == one, "four are too few"
    query.clock.advance(9.9)
    assert query.latest(one) == one
    assert query.latest(one, limited=False) != one, "Trigger.Once wants all there is"
    query.clock.advance(10.1)
    two = query.latest(one)
    assert query.read(one, two) == ["t-0[4, 6)", "t-1[4, 6)"]
    world.topics = two_partitions(9, 8)
    three = query.latest(two)
    assert query.read(two, three) == ["t-0[6, 9)", "t-1[6, 8)"], "five are enough"
    world.topics = {"t": ("id", [(0, 9)])}
    with pytest.raises(DataLossError):  # what is lost is told at once
        query.latest(three)


def test_a_minimum_delays_neither_first_nor_available_now() -> None:
    world = World(two_partitions(4, 4))
    first = Query(world, startingOffsets="earliest", minOffsetsPerTrigger="100")
    one = first.latest(first.driver.initial())
    world.topics = two_partitions(5, 4)
    assert Query(world, minOffsetsPerTrigger="100").latest(one) != one
    last = Query(world, minOffsetsPerTrigger="100", maxOffsetsPerTrigger="1000")
    last.driver.prepare_available_now()
    two = last.latest(one)
    assert last.read(one, two) == ["t-0[4, 5)"]
    assert last.latest(two) == two


def test_a_bound_on_bytes_is_shared_out() -> None:
    query = Query(
        World(two_partitions(300, 100)), startingOffsets="earliest", maxBytesPerTrigger="40"
    )
    one = query.latest(query.driver.initial())
    assert query.read({}, one) == ["t-0[0, 30)", "t-1[0, 10)"]
    assert query.read(one, query.latest(one)) == ["t-0[30, 60)", "t-1[10, 20)"]


def test_bounds_on_bytes_and_records_hold_both() -> None:
    world = World(two_partitions(300, 100))
    bounds = {"startingOffsets": "earliest", "maxBytesPerTrigger": "40"}
    query = Query(world, **bounds, maxOffsetsPerTrigger="20")
    assert query.read({}, query.latest(query.driver.initial())) == ["t-0[0, 15)", "t-1[0, 5)"]
    query = Query(world, **bounds, maxOffsetsPerTrigger="200")
    assert query.read({}, query.latest(query.driver.initial())) == ["t-0[0, 30)", "t-1[0, 10)"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingTimestamp": "3"}, ["t-0[3000, 4000)", "t-1[3000, 5000)"]),
        (
            {"startingOffsetsByTimestamp": '{"t":{"0":1,"1":2}}'},
            ["t-0[1000, 4000)", "t-1[2000, 5000)"],
        ),
        ({"startingOffsets": "-100"}, ["t-0[3900, 4000)", "t-1[4900, 5000)"]),
        ({"startingOffsets": "-2 ms"}, ["t-0[3000, 4000)", "t-1[3000, 5000)"]),
    ],
)
def test_starts_by_time_and_from_the_end(options: dict[str, str], expected: list[str]) -> None:
    query = Query(World(two_partitions(4000, 5000)), **options)
    query.clock.advance(0.005)
    one = query.latest(query.driver.initial())
    assert query.read({}, one) == expected


def test_a_start_by_time_that_no_record_reaches() -> None:
    world = World(two_partitions(4000, 5000))
    query = Query(world, startingTimestamp="4")
    with pytest.raises(InvalidOptionError, match=r"startingTimestamp: t-0 has no record at or"):
        query.latest(query.driver.initial())
    query = Query(world, startingTimestamp="4", startingOffsetsByTimestampStrategy="latest")
    assert query.read({}, query.latest(query.driver.initial())) == ["t-1[4000, 5000)"]


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


def test_available_now_from_latest_reads_nothing() -> None:
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
    world.group_epoch, world.rewinds = 1, {T0: 1}
    world.commits.clear()
    rewound = query.latest(end)
    assert world.commits == []  # nothing is committed over the rewind
    assert query.read(end, rewound) == ["t-0[1, 4)"]
    again = Query(world, group="g")
    assert again.read(end, rewound) == ["t-0[1, 4)"]
    assert again.latest(rewound) == rewound
    assert world.commits == [{T0: 4, T1: 4}]


def test_available_now_follows_a_rewind_that_skips_past_its_end() -> None:
    world = World(two_partitions(4, 4))
    query = Query(world, startingOffsets="earliest", group="g")
    query.driver.prepare_available_now()
    end = query.latest(query.driver.initial())
    world.topics = two_partitions(9, 9)
    world.group_epoch, world.rewinds = 1, {T0: 7}
    skipped = query.latest(end)
    assert query.read(end, skipped) == []
    assert query.latest(skipped) == skipped
    later = Query(world, group="g")
    later.driver.prepare_available_now()
    assert later.read(skipped, later.latest(skipped)) == ["t-0[7, 9)", "t-1[4, 9)"]


def test_rewinds_of_a_group_that_was_deleted_meanwhile() -> None:
    world = World(two_partitions(4, 4), group_epoch=5)
    end = Query(world, startingOffsets="earliest", group="g").latest(UNRESOLVED.to_json())
    world.group_epoch, world.rewinds = 1, {T0: 3}
    again = Query(world, group="g")
    assert again.read(end, again.latest(end)) == ["t-0[3, 4)"]
    assert world.asked_rewinds == [(RewindMark(5), RewindMark(1))]


def test_a_recreated_groups_rewind_of_the_same_number_is_followed() -> None:
    world = World(two_partitions(4, 4), group_epoch=1, group_token="first")
    query = Query(world, startingOffsets="earliest", group="g")
    end = query.latest(query.driver.initial())
    world.group_token, world.rewinds = "second", {T0: 3}
    world.commits.clear()
    rewound = query.latest(end)
    assert query.read(end, rewound) == ["t-0[3, 4)"]
    assert world.commits == [], "nothing is committed over the rewind"
    again = Query(world, group="g")
    assert again.latest(rewound) == rewound
    assert len(world.asked_rewinds) == 1


def test_a_tokenless_checkpoint_goes_by_the_number() -> None:
    world = World(two_partitions(4, 4), group_epoch=1)
    query = Query(world, startingOffsets="earliest", group="g")
    end = query.latest(query.driver.initial())
    assert "rewind" not in end
    world.group_token, world.rewinds = "first", {T0: 3}
    assert query.latest(end) == end


def test_the_group_is_held_before_anything_is_read_for_it() -> None:
    world = World(two_partitions(4, 4))
    query = Query(world, startingOffsets="earliest", group="g")
    end = query.latest(query.driver.initial())
    assert world.held == [{"t"}]
    world.held.clear()
    world.topics = two_partitions(9, 9)
    Query(world, group="g").read({}, end)  # what a restart begins with
    assert world.held == [{"t"}]
    world.held.clear()
    world.refusal = GroupHeldError("held")
    for refused in (lambda: query.latest(end), lambda: Query(world, group="g").read({}, end)):
        with pytest.raises(GroupHeldError):
            refused()
    assert world.commits == [{T0: 0, T1: 0}]
    Query(world).latest(end)  # without a group there is nothing to hold


def test_rewinds_before_the_stream_joined_are_past() -> None:
    world = World(two_partitions(4, 4), group_epoch=7, rewinds={T0: 0})
    query = Query(world, group="g")
    end = query.latest(query.driver.initial())
    assert query.latest(end) == end
    other = Query(world, group="h")
    world.group_epoch = 9
    assert other.latest(end) == end


def test_unusable_starts_end_the_query_with_the_option_named() -> None:
    query = Query(World(two_partitions(1, 1)), startingOffsets='{"t":{"0":0}}')
    with pytest.raises(InvalidOptionError, match=r"startingOffsets .* lacks t-1"):
        query.latest(query.driver.initial())


def test_progress_shows_high_watermarks_and_bytes_behind() -> None:
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
