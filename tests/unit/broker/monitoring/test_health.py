"""The health of a broker, state by state."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from spark_logbus.broker.handlers.dispatch import RequestDispatcher
from spark_logbus.broker.monitoring.health import Health, Phase, SessionWatch
from spark_logbus.broker.monitoring.moves import MovesHere
from spark_logbus.broker.replica.following import Following
from spark_logbus.broker.replica.in_sync import InSync
from spark_logbus.broker.replica.manager import ReplicaManager
from spark_logbus.errors import (
    BrokerShuttingDownError,
    LogMissingError,
    NotLeaderError,
    PartitionOfflineError,
    StorageError,
)
from spark_logbus.log import LogDirectory
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper import Session, SessionState
from tests.builders.record_batches import record_batch
from tests.fakes.clock import ManualClock
from tests.fakes.disk import SimulatedDisk
from tests.fakes.log_directory import TOPIC_ID, TP, Broker, ensure_one


class Subject:
    """A health and all that it looks at."""

    def __init__(self, logs: LogDirectory) -> None:
        self.clock = ManualClock()
        self.watch = SessionWatch(self.clock)
        self.refused: dict[TopicPartition, StorageError] = {}
        self.requests = SimpleNamespace(refusal=None)
        self.moves = SimpleNamespace(failed=dict, stuck=dict)
        self.troubles: dict[TopicPartition, str] = {}
        self.lacking: list[SimpleNamespace] = []
        self.session = SimpleNamespace(
            state=SessionState.CONNECTED,
            session_timeout_ms=10_000,
            connect=SimpleNamespace(servers="zk:2181"),
            unreadable=SimpleNamespace(messages={}),
        )
        self.health = Health(
            logs=logs,
            replica_manager=cast(ReplicaManager, SimpleNamespace(refused=lambda: self.refused)),
            requests=cast(RequestDispatcher, self.requests),
            session=cast(Session, self.session),
            session_watch=self.watch,
            moves=cast(MovesHere, self.moves),
            following=cast(Following, SimpleNamespace(troubles=lambda: self.troubles)),
            in_sync=cast(InSync, SimpleNamespace(lacking=lambda: self.lacking)),
        )
        self.health.phase = Phase.SERVING

    def session_is(self, state: SessionState) -> None:
        self.session.state = state
        self.watch.follow(state)


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path / "data")


def test_a_broker_that_serves(broker: Broker) -> None:
    broker.append(record_batch())
    report = Subject(broker.directory).health.report()
    assert report.healthy
    assert (report.status, report.reasons, report.notes) == ("ok", (), ())


def test_a_replica_that_cannot_follow_is_a_note(broker: Broker) -> None:
    subject = Subject(broker.directory)
    subject.troubles[TP] = "There is no room."
    report = subject.health.report()
    assert report.healthy
    assert report.notes == (f"The replica of {TP} cannot follow its leader: There is no room.",)


def test_partitions_that_lack_replicas_are_notes(broker: Broker) -> None:
    """A broker that serves all that it can is healthy, whoever else is away."""
    subject = Subject(broker.directory)

    def members(partition: int, *in_sync: int, enough: bool) -> SimpleNamespace:
        led = SimpleNamespace(log=SimpleNamespace(topic_partition=TopicPartition("t", partition)))
        return SimpleNamespace(
            led=led, in_sync=[*in_sync], assigned=[3, 2, 1], enough=enough, least=2
        )

    subject.lacking = [members(1, 1, 2, enough=True), members(0, 1, enough=False)]
    report = subject.health.report()
    assert report.healthy
    assert report.notes == (
        "Of t-0 1 replicas are in sync (on the brokers 1), fewer than min.insync.replicas, 2: what "
        "is to be replicated is refused.",
        "Of t-1 the replicas on the brokers 3 are not in sync.",
    )


@pytest.mark.parametrize(
    ("phase", "named"),
    [
        (Phase.STARTING, "is starting"),
        (Phase.RECOVERING, "0 of 0 logs are open"),
        (Phase.JOINING, "joining ZooKeeper"),
        (Phase.STOPPING, "shutting down"),
    ],
)
def test_phases_in_which_it_does_not_serve(broker: Broker, phase: Phase, named: str) -> None:
    subject = Subject(broker.directory)
    subject.health.phase = phase
    report = subject.health.report()
    assert not report.healthy
    assert report.status == phase.value
    assert named in report.reasons[0]


def test_a_short_break_of_the_connection_is_no_matter(broker: Broker) -> None:
    subject = Subject(broker.directory)
    subject.session_is(SessionState.SUSPENDED)
    subject.clock.advance(9)
    assert subject.health.report().healthy
    subject.clock.advance(1)
    report = subject.health.report()
    assert not report.healthy
    assert "has not answered for 10 seconds" in report.reasons[0]
    subject.session_is(SessionState.CONNECTED)
    assert subject.health.report().healthy


def test_a_lost_session_counts_at_once(broker: Broker) -> None:
    subject = Subject(broker.directory)
    subject.session_is(SessionState.SUSPENDED)
    subject.session_is(SessionState.LOST)
    assert not subject.health.report().healthy
    assert (subject.watch.disconnects, subject.watch.expirations) == (1, 1)


def test_a_broker_whose_id_was_taken(broker: Broker) -> None:
    subject = Subject(broker.directory)
    subject.requests.refusal = NotLeaderError("Broker 1 serves nothing any more.")
    assert subject.health.report().reasons == ("Broker 1 serves nothing any more.",)


def test_a_failed_flush_takes_health_with_the_partition() -> None:
    disk = SimulatedDisk()
    broker = Broker(files=disk)
    broker.append(record_batch())

    disk.refuse = lambda operation, path: errno.EIO if operation == "sync" else None
    broker.append(record_batch())
    subject = Subject(broker.directory)
    assert set(subject.health.offline()) == {TP}
    report = subject.health.report()
    assert report.status == "unhealthy"
    assert "flights-0 is offline" in report.reasons[0]


def test_many_offline_partitions_are_not_all_named(broker: Broker) -> None:
    for partition in range(14):
        where = type(TP)("flights", partition)
        log = ensure_one(broker.directory, where, topic_id=TOPIC_ID, config={})
        log.stop(PartitionOfflineError(f"{where} is offline."))
    reasons = Subject(broker.directory).health.report().reasons
    assert len(reasons) == 11
    assert reasons[-1] == "4 more partitions are offline."


def test_a_log_that_is_closed_in_order_is_not_offline(broker: Broker) -> None:
    broker.append(record_batch())
    broker.log().stop(BrokerShuttingDownError("The broker is shutting down."))
    assert Subject(broker.directory).health.offline() == {}


def test_damage_is_noted_but_does_not_stop_service(broker: Broker) -> None:
    broker.append(record_batch(), record_batch(), record_batch())
    path = broker.log_path() / "00000000000000000000.log"
    broker.directory.close()
    data = bytearray(path.read_bytes())
    data[len(data) // 2 + 40] ^= 1  # in the payload of the second record batch
    path.write_bytes(data)
    path.with_suffix(".index").unlink()
    broker.start()
    report = Subject(broker.directory).health.report()
    assert report.healthy
    assert "flights-0[" in report.notes[0]


def test_a_refused_partition_is_offline(broker: Broker) -> None:
    subject = Subject(broker.directory)
    subject.refused[TP] = LogMissingError("Its log is missing.")
    assert subject.health.offline() == {TP: "Its log is missing."}
    assert not subject.health.report().healthy


def test_joining_names_a_zookeeper_that_is_away(broker: Broker) -> None:
    subject = Subject(broker.directory)
    subject.health.phase = Phase.JOINING
    subject.session_is(SessionState.SUSPENDED)
    assert "waiting for ZooKeeper at zk:2181" in subject.health.report().reasons[0]


def test_unreadable_nodes_are_noted(broker: Broker) -> None:
    subject = Subject(broker.directory)
    subject.session.unreadable.messages["/topics/x"] = "The node /topics/x is not of logbus."
    assert subject.health.report().notes == ("The node /topics/x is not of logbus.",)


def test_moves_that_have_failed_or_are_stuck_are_noted_and_no_illness(broker: Broker) -> None:
    subject = Subject(broker.directory)
    other = TopicPartition("other", 0)
    subject.moves.failed = lambda: {TP: "It has failed."}
    subject.moves.stuck = lambda: {other: "It is stuck."}
    report = subject.health.report()
    assert report.healthy
    assert report.notes == ("It has failed.", "It is stuck.")
