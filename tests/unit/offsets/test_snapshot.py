"""What is said of partitions whose offsets cannot be had now."""

from __future__ import annotations

from typing import cast

import pytest

from spark_logbus.client import Admin, PartitionDescription, TopicDescription
from spark_logbus.errors import BrokerUnavailableError, LogbusError
from spark_logbus.model import BrokerAddress
from spark_logbus.offsets.snapshot import take_snapshot
from spark_logbus.protocol import PartitionEnds
from spark_logbus.selection import Pattern

LEADER = BrokerAddress(2, "etl-1", 9092)


class Describing:
    """An admin that knows one topic."""

    def __init__(self, *partitions: PartitionDescription) -> None:
        self._topic = TopicDescription("t", "id", {}, {one.partition: one for one in partitions})

    def topics(self) -> list[TopicDescription]:
        return [self._topic]

    def describe(self, names: list[str], *, ends: bool) -> dict[str, TopicDescription]:
        assert ends
        return dict.fromkeys(names, self._topic)


def refusal(leader: BrokerAddress | None, problem: LogbusError | None) -> str:
    led = PartitionDescription(0, LEADER, PartitionEnds(0, 1, 1, 100))
    other = PartitionDescription(1, leader, None, problem)
    admin = cast(Admin, Describing(led, other))
    with pytest.raises(BrokerUnavailableError) as raised:
        take_snapshot(admin, Pattern("t.*"), missing_ok=True)
    return str(raised.value)


def test_a_new_topic_does_not_look_like_a_dead_broker() -> None:
    said = refusal(LEADER, None)
    assert "broker 2 at etl-1:9092 does not serve t-1 yet: the topic is new" in said
    assert "start it" not in said
    assert "does not answer" not in said


def test_a_dead_broker_is_named() -> None:
    problem = BrokerUnavailableError("Cannot connect to broker 2 at etl-1:9092: refused.")
    assert refusal(LEADER, problem) == f"The offsets of t-1 are not known: {problem}"
