"""What the driver's part of a stream does about faults, losses and other releases' checkpoints."""

from __future__ import annotations

from typing import Any

import pytest

from spark_logbus.datasource.planning import splitter
from spark_logbus.errors import (
    BrokerUnavailableError,
    CoordinationError,
    DataLossError,
    UnknownTopicError,
    UnsupportedVersionError,
)
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.offsets.trigger_limits import TriggerLimits, limited_ends
from tests.unit.datasource.world import T0, T1, Query, World, two_partitions


def test_passing_faults_do_not_end_the_query() -> None:
    world = World(two_partitions(4, 4), faults=[BrokerUnavailableError("away")] * 2)
    query = Query(world, startingOffsets="earliest")
    assert query.read({}, query.latest(query.driver.initial())) == ["t-0[0, 4)", "t-1[0, 4)"]


def test_a_cluster_that_was_met_before_is_waited_for_longer() -> None:
    world = World(two_partitions(4, 4), faults=[BrokerUnavailableError("away")] * 100)
    query = Query(world)
    with pytest.raises(BrokerUnavailableError, match=r"has failed for (2\d|30) s.*away"):
        query.latest(query.driver.initial())
    world.faults = []
    end = query.latest(query.driver.initial())
    world.faults = [BrokerUnavailableError("away")] * 100
    with pytest.raises(BrokerUnavailableError, match=r"has failed for (8\d|90) s.*away"):
        query.latest(end)


def test_a_deselected_topic_was_not_deleted() -> None:
    world = World(two_partitions(4, 4))
    end = Query(world).latest({"version": 1, "unresolved": True})
    for left_out, options in (
        ("topic t", {"subscribePattern": "u.*"}),
        ("partition t-1", {"assign": '{"t":[0]}'}),
    ):
        selected = f"{left_out}, which the checkpoint names, is not among those that the options"
        with pytest.raises(DataLossError, match=selected):
            Query(world, subscribe="", **options).latest(end)
    world.topics = {}
    with pytest.raises(DataLossError, match="topic t was deleted"):
        Query(world, subscribe="", assign='{"t":[0]}').latest(end)


def test_a_missing_topic_is_an_error_then_data_loss() -> None:
    world = World()
    query = Query(world)
    with pytest.raises(UnknownTopicError, match="no topic t; it has: none"):
        query.latest(query.driver.initial())
    world.topics = two_partitions(4)
    end = query.latest(query.driver.initial())
    world.topics = {}
    with pytest.raises(DataLossError, match="topic t was deleted"):
        query.latest(end)


def test_a_topic_that_is_deleted_while_its_tasks_are_planned() -> None:
    """Its tasks find that out and decide on it, as on records that retention takes."""
    world = World(two_partitions(4, 4) | {"u": ("other", [(0, 4)])})
    query = Query(world, subscribe="t,u", startingOffsets="earliest")
    end = query.latest(query.driver.initial())
    whole = query.read({}, end)
    del world.topics["u"]
    assert query.read({}, end) == whole == ["t-0[0, 4)", "t-1[0, 4)", "u-0[0, 4)"]


def test_a_topic_deleted_while_a_micro_batch_is_planned() -> None:
    world = World(two_partitions(4))
    there, gone = OffsetRange(T0, 0, 4), OffsetRange(TopicPartition("u", 0), 0, 4)
    cut = limited_ends(
        {one.topic_partition: one for one in (there, gone)},
        TriggerLimits(max_bytes=3),
        splitter(world.admin()),
    )
    assert cut == {T0: 3, gone.topic_partition: 4}


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
        Query(World(two_partitions(1))).latest({"version": 3})


class BusyWorld(World):
    """A world whose group cannot be reached by its next ``misses`` commits."""

    misses = 0

    def commit(self, *given: Any, **named: Any) -> bool:
        if self.misses:
            self.misses -= 1
            raise CoordinationError("away for a moment")
        return super().commit(*given, **named)


def test_a_query_that_loses_records_has_committed_what_it_has_processed() -> None:
    world = BusyWorld(two_partitions(5, 5))
    query = Query(world, startingOffsets="earliest", group="g")
    end = query.latest(query.driver.initial())
    query.read({}, end)
    world.topics = {"t": ("id", [(9, 12), (9, 12)])}
    world.misses = 1
    with pytest.raises(DataLossError):
        query.latest(end)
    assert world.commits[-1] == {T0: 5, T1: 5}


def test_a_leader_of_before_with_an_older_end_is_no_data_loss() -> None:
    world = World(two_partitions(4, 4), replicated=True)
    query = Query(world)
    end = query.latest(query.driver.initial())
    world.topics = two_partitions(2, 4)
    world.newest = [(0, 5), (0, 4)]
    assert query.read(end, query.latest(end)) == ["t-0[4, 5)"]
    assert world.heard == 1


def test_a_micro_batch_of_a_checkpoint_waits_for_a_leader_that_has_it() -> None:
    world = World(two_partitions(4, 4), replicated=True)
    query = Query(world, startingOffsets="earliest")
    start = query.driver.initial()
    end = query.latest(start)
    world.topics = two_partitions(2, 4)
    world.newest = [(0, 5), (0, 4)]
    assert Query(world).read(start, end) == ["t-0[0, 4)", "t-1[0, 4)"]


def test_what_no_leader_has_for_long_is_lost() -> None:
    world = World(two_partitions(4, 4), replicated=True)
    query = Query(world)
    end = query.latest(query.driver.initial())
    world.topics = two_partitions(2, 4)
    began = query.clock.monotonic()
    with pytest.raises(DataLossError, match=r"up to offset 4, but the log now ends at 2"):
        query.latest(end)
    assert 20 <= query.clock.monotonic() - began < 30
    assert world.heard > 1
    world.replicated = False
    began = query.clock.monotonic()
    with pytest.raises(DataLossError):
        Query(world).latest(end)
    assert query.clock.monotonic() == began, "no other has it"
