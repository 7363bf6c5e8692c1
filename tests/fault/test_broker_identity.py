"""A broker process that is stopped for longer than its ZooKeeper session, and goes on."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from spark_logbus.coordination.cluster.brokers import BrokerRegistry
from spark_logbus.errors import LogbusError
from spark_logbus.local import zookeeper_command as zookeeper_launch
from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from spark_logbus.protocol import Api, AppendResponse
from spark_logbus.record import split
from spark_logbus.zookeeper import Session
from tests.builders.record_batches import record_batch
from tests.helpers import frozen, wait_until
from tests.servers.broker import SESSION_MS, broker_process, connect, create_topic
from tests.servers.wire import EndedError, Wire, append_request
from tests.servers.zookeeper import put

DATA = record_batch(payload=bytes(20_000))
SETTINGS = {"broker": {"zookeeper_session_ms": SESSION_MS}}
QUEUED = 30
WIRES = 4


def queue(wires: list[Wire], *, acks: str = "flushed") -> None:
    """Send appends that nobody receives yet."""
    for wire in wires:
        for _ in range(QUEUED):
            wire.send(Api.APPEND, append_request("t", 0, DATA, acks=acks), DATA)


def outcomes(wire: Wire) -> list[int | LogbusError]:
    """Returns the outcome of what was queued: the base offset, or the error."""
    found: list[int | LogbusError] = []
    last = wire._correlation
    for correlation in range(last - QUEUED + 1, last + 1):
        try:
            result = wire.answer(Api.APPEND, AppendResponse, correlation=correlation).results[0]
        except LogbusError as error:
            found.append(error)
        except EndedError:
            break
        else:
            failed = result.error
            found.append(result.base_offset if failed is None else failed.to_exception())
    return found


def taken(wire: Wire) -> int | None:
    """The offset of an append, or None while it is refused for now."""
    refused: LogbusError
    try:
        result = wire.append("t", 0, DATA).results[0]
    except LogbusError as error:
        refused = error
    else:
        if result.error is None:
            return result.base_offset
        refused = result.error.to_exception()
    assert refused.retriable
    return None


def epochs_of(wire: Wire) -> set[int]:
    """The leader epochs of the records that can be read."""
    found, offset = set(), 0
    while wire.fetch("t", 0, offset).results[0].length:
        for header, _ in split(wire.payload, allow_tail=False):
            found.add(header.leader_epoch)
            offset = header.next_offset
    return found


def registered(connect: str) -> list[int]:
    with Session(connect, client_name="observer") as session:
        return [address.broker_id for address in BrokerRegistry(session).live()]


@pytest.mark.long
def test_a_stopped_broker_that_lost_its_id_acknowledges_nothing(
    tmp_path: Path, chroot: str
) -> None:
    with (
        broker_process(tmp_path / "one", chroot, settings=SETTINGS) as broker,
        contextlib.ExitStack() as stack,
    ):
        pid = broker.pid
        wires = [stack.enter_context(connect(broker)) for _ in range(WIRES)]
        create_topic(wires[0], "t")
        assert [taken(wire) for wire in wires] == list(range(WIRES))
        with frozen(broker.pid):
            rival = stack.enter_context(
                broker_process(tmp_path / "rival", chroot, settings=SETTINGS)
            )
            queue(wires[:2])
            queue(wires[2:], acks="written")
        for wire in wires:
            assert all(isinstance(outcome, LogbusError) for outcome in outcomes(wire))
        with connect(broker) as wire:
            assert taken(wire) is None
            rival.stop()
            assert wait_until(lambda: taken(wire)) == WIRES, "nothing was written meanwhile"
        assert broker.pid == pid
        assert registered(chroot) == [1]
        told = broker.log_file.read_text()
        assert "has its id again" in told
        assert "Leading t-0 in epoch 0" in told
        epochs = [line for line in told.splitlines() if "Leading t-0 in epoch" in line]
        assert len(epochs) == 2, epochs
        assert "epoch 0" not in epochs[1]


@pytest.mark.long
def test_a_shorter_granted_session_bounds_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    granting_less = zookeeper_launch._ZOO_CFG.replace("Timeout=60000", "Timeout=2000")
    monkeypatch.setattr(zookeeper_launch, "_ZOO_CFG", granting_less)
    settings = {"broker": {"zookeeper_session_ms": 20_000}}
    with (
        EmbeddedZooKeeper(tmp_path / "zookeeper", heap_mb=64) as zookeeper,
        contextlib.ExitStack() as stack,
    ):
        address = f"{zookeeper.address}/logbus"
        one = broker_process(tmp_path / "one", address, settings=settings)
        rival = broker_process(tmp_path / "rival", address, settings=settings)
        broker = stack.enter_context(one)
        wires = [stack.enter_context(connect(broker)) for _ in range(WIRES)]
        create_topic(wires[0], "t")
        with frozen(broker.pid):
            wait_until(lambda: registered(address) == [], message="the session to expire")
            stack.enter_context(rival)
            queue(wires)
        for wire in wires:
            assert all(isinstance(outcome, LogbusError) for outcome in outcomes(wire))


def test_a_broker_that_slept_takes_waiting_appends(tmp_path: Path, chroot: str) -> None:
    with (
        broker_process(tmp_path / "one", chroot, settings=SETTINGS) as broker,
        contextlib.ExitStack() as stack,
    ):
        wires = [stack.enter_context(connect(broker)) for _ in range(WIRES)]
        create_topic(wires[0], "t")
        with frozen(broker.pid):
            queue(wires)
            wait_until(lambda: registered(chroot) == [], message="the session to expire")
            state = b'{"leader":1,"leader_epoch":7,"in_sync":[1]}'
            put(chroot, "/brokers/topics/t/partitions/0/state", state)  # as a rival left it
        offsets = [outcome for wire in wires for outcome in outcomes(wire)]
        assert sorted(offsets, key=str) == sorted(range(WIRES * QUEUED), key=str)
        assert registered(chroot) == [1]
        assert epochs_of(wires[0]) == {8}


@pytest.mark.long
def test_after_a_sleep_a_broker_goes_on_without_zookeeper(tmp_path: Path) -> None:
    with (
        EmbeddedZooKeeper(tmp_path / "zookeeper", heap_mb=64) as zookeeper,
        broker_process(
            tmp_path / "one", f"{zookeeper.address}/logbus", settings=SETTINGS
        ) as broker,
        connect(broker) as wire,
    ):
        create_topic(wire, "t")
        with frozen(broker.pid):
            wait_until(lambda: registered(f"{zookeeper.address}/logbus") == [])
            zookeeper.stop()
            queue([wire])
        assert outcomes(wire) == list(range(QUEUED))
        assert "appends wait" in broker.log_file.read_text()
        zookeeper.start()
        assert wait_until(lambda: taken(wire)) == QUEUED
