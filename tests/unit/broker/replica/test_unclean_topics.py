"""Topics that allow unclean elections: which broker has itself elected, and when."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from spark_logbus.broker.replica.manager import ReplicaManager
from spark_logbus.broker.replica.unclean import Candidate, UncleanElections
from spark_logbus.broker.replica.unclean_topics import WAIT_S, UncleanTopics
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.errors import (
    BrokerUnavailableError,
    CoordinationError,
    LogbusError,
    LogMissingError,
)
from spark_logbus.log import PartitionLog
from spark_logbus.model import TopicPartition
from spark_logbus.protocol import (
    ReplicaStanding,
    UncleanElectRequest,
    UncleanElectResponse,
    UncleanElectResult,
    error_info,
)
from tests.fakes.clock import ManualClock

ME, TWO, THREE, FOUR = 1, 2, 3, 4
ALLOWS = {"unclean.leader.election": "true"}
T0 = TopicPartition("t", 0)
ID = "a" * 32
LED = PartitionState(TWO, 5, [TWO])


def standing(last_epoch: int, log_end: int) -> ReplicaStanding:
    return ReplicaStanding(TWO, 5, [TWO], last_epoch=last_epoch, log_end=log_end)


class Here:
    """Broker 1, to which a partition is assigned whose leader, broker 2, is gone."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.assigned = [TWO, THREE, ME, FOUR]
        self.config: Mapping[str, str] = ALLOWS
        self.live = {ME}
        self.state: PartitionState | None = LED
        self.own = standing(5, 10)
        self.problem: LogbusError | None = None
        self.refusal: LogbusError | None = None
        self.others: dict[int, ReplicaStanding | LogbusError] = {}
        self.elected: list[tuple[TopicPartition, str | None, int]] = []
        self.is_certain = True
        self.topics = UncleanTopics(
            ME,
            elections=cast(UncleanElections, SimpleNamespace(look=self.look, ask=self.elect)),
            replica_manager=cast(
                ReplicaManager, SimpleNamespace(known_state=lambda *_: self.state)
            ),
            topics=lambda: {"t": TopicRecord("t", ID, {0: self.assigned}, dict(self.config))},
            live=lambda: self.live,
            is_certain=lambda: self.is_certain,
            ask=self.ask,
            clock=self.clock,
        )

    def look(self, topic: str, partitions: list[int], topic_id: str) -> dict[int, Candidate]:
        assert (topic, partitions, topic_id) == ("t", [0], ID)
        ends = SimpleNamespace(log_start_offset=0, log_end_offset=self.own.log_end)
        epochs = SimpleNamespace(latest=self.own.last_epoch)
        log = SimpleNamespace(ends=lambda: ends, epochs=epochs)
        return {0: Candidate(self.state, cast(PartitionLog, log), self.problem)}

    def elect(
        self, where: TopicPartition, topic_id: str, epoch: int, *, why: str
    ) -> Future[PartitionState]:
        assert "unclean.leader.election=true" in why
        self.elected.append((where, topic_id, epoch))
        done = Future[PartitionState]()
        if self.refusal is not None:
            done.set_exception(self.refusal)
        else:
            self.state = msgspec.structs.replace(LED, leader=ME, leader_epoch=6, in_sync=[ME])
            done.set_result(self.state)
        return done

    def ask(self, broker_id: int, request: UncleanElectRequest) -> UncleanElectResponse:
        assert (request.partitions, request.epochs) == ([0], [])
        found = self.others[broker_id]
        if isinstance(found, BrokerUnavailableError):
            raise found
        if isinstance(found, LogbusError):
            return UncleanElectResponse([UncleanElectResult(0, error=error_info(found))])
        return UncleanElectResponse([UncleanElectResult(0, found)])

    def after(self, seconds: float) -> list[tuple[TopicPartition, str | None, int]]:
        self.clock.advance(seconds)
        self.topics.look()
        return self.elected


@pytest.fixture
def here() -> Here:
    return Here()


def test_nobody_is_elected_before_those_in_sync_had_time_to_come_back(here: Here) -> None:
    assert here.after(0) == []
    assert here.after(WAIT_S - 0.1) == []
    assert here.after(0.1) == [(T0, ID, 5)]
    assert len(here.after(60)) == 1, "it leads by now"


def test_the_time_begins_anew_when_one_was_back(here: Here) -> None:
    here.after(0)
    here.live = {ME, TWO}
    assert here.after(WAIT_S) == []
    here.live = {ME}
    assert here.after(WAIT_S) == []
    assert here.after(WAIT_S) == [(T0, ID, 5)]


@pytest.mark.parametrize(
    "change",
    [
        {"config": {}},
        {"config": {"unclean.leader.election": "false"}},
        {"config": {"unclean.leader.election": "perhaps"}},
        {"assigned": [TWO, THREE]},
        {"assigned": [ME]},
        {"state": None},
        {"state": msgspec.structs.replace(LED, in_sync=[TWO, ME])},
        {"live": {ME, TWO}},
        {"live": set()},
        {"is_certain": False},
        {"problem": LogMissingError("There is no log.")},
    ],
)
def test_what_is_not_to_be_led_unclean(here: Here, change: dict[str, object]) -> None:
    for name, value in change.items():
        setattr(here, name, value)
    here.others[THREE] = standing(0, 0)
    here.after(0)
    assert here.after(WAIT_S) == []
    assert here.after(WAIT_S) == []


@pytest.mark.parametrize(
    ("other", "is_elected"),
    [
        (standing(5, 9), True),
        (standing(5, 10), False),  # it comes first in the assignment
        (standing(5, 11), False),
        (standing(4, 11), True),  # what it has more was not the last leader's
        (standing(6, 3), False),
        (LogMissingError("It has none."), True),
    ],
)
def test_the_one_with_the_most_is_elected(
    here: Here, other: ReplicaStanding | LogbusError, is_elected: bool
) -> None:
    here.live = {ME, THREE}
    here.others[THREE] = other
    here.after(0)
    assert bool(here.after(WAIT_S)) == is_elected


def test_of_two_that_have_as_much_the_first_is_elected(here: Here) -> None:
    here.live = {ME, FOUR}
    here.others[FOUR] = here.own
    here.after(0)
    assert here.after(WAIT_S) == [(T0, ID, 5)]


def test_one_that_does_not_answer_is_waited_for_and_then_passed_over(here: Here) -> None:
    here.live = {ME, THREE}
    here.others[THREE] = BrokerUnavailableError("It hangs.")
    here.after(0)
    assert here.after(WAIT_S) == []
    assert here.after(0.5) == [], "there is a pause between two tries"
    assert here.after(60) == []
    assert here.after(60) == [(T0, ID, 5)]


def test_who_was_not_elected_tries_again_after_a_while(
    here: Here, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    here.refusal = CoordinationError("ZooKeeper does not answer.")
    here.after(0)
    assert len(here.after(WAIT_S)) == 1
    assert "Not elected leader of t-0: ZooKeeper does not answer." in caplog.text
    assert len(here.after(0.1)) == 1
    here.refusal = None
    assert len(here.after(60)) == 2
