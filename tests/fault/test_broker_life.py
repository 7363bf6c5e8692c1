"""A broker process that is stopped under load, and one whose ZooKeeper goes away."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest

from spark_logbus.errors import CoordinationError, EmbeddedServerError, LogbusError
from spark_logbus.local.processes import stop
from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from spark_logbus.protocol import (
    Api,
    AppendResponse,
    CreateTopicRequest,
    CreateTopicResponse,
    FetchResponse,
    MetadataRequest,
    MetadataResponse,
)
from tests.builders.record_batches import record_batch
from tests.helpers import frozen, wait_until
from tests.servers.broker import broker_process, connect, create_topic, is_led, offsets_in
from tests.servers.wire import EndedError, Wire, append_request, fetch_request

DATA = record_batch(payload=bytes(20_000))


class Appender(threading.Thread):
    """Appends one after the other until it is refused; several requests under way at a time."""

    def __init__(self, address: str, partition: int, *, in_flight: int = 5) -> None:
        super().__init__()
        self._wire = Wire.to(address)
        self._partition = partition
        self._in_flight = in_flight
        self.acknowledged: list[int] = []
        self.refused: list[LogbusError] = []
        self.unanswered = 0
        self.start()

    def run(self) -> None:
        request = append_request("t", self._partition, DATA)
        with self._wire as wire:
            sent: list[int] = []
            try:
                while not self.refused:
                    while len(sent) < self._in_flight:
                        sent.append(wire.send(Api.APPEND, request, DATA))
                    self._answer(wire, sent.pop(0))
                while sent:
                    self._answer(wire, sent.pop(0))
            except EndedError:
                self.unanswered = len(sent)

    def _answer(self, wire: Wire, correlation: int) -> None:
        try:
            response = wire.answer(Api.APPEND, AppendResponse, correlation=correlation)
        except LogbusError as error:
            self.refused.append(error)
            return
        result = response.results[0]
        if result.error is not None:
            self.refused.append(result.error.to_exception())
        else:
            self.acknowledged.append(result.base_offset)


def read_all(wire: Wire, partition: int) -> list[int]:
    offset, found = 0, []
    while wire.fetch("t", partition, offset).results[0].length:
        for base, following in offsets_in(wire.payload):
            found.append(base)
            offset = following
    return found


def test_sigterm_under_load(tmp_path: Path, chroot: str) -> None:
    settings = {"network": {"drain_timeout_ms": 60_000}}
    with broker_process(tmp_path, chroot, settings=settings) as broker:
        address = broker.address
        with connect(broker) as wire:
            create_topic(wire, "t", partitions=4)
            appenders = [Appender(address, partition) for partition in range(4)]
            with connect(broker) as reader:
                reader.send(Api.FETCH, fetch_request("t", 0, 10**9, wait_ms=0))
                assert reader.answer(Api.FETCH, FetchResponse).results[0].error is not None
                wait_until(lambda: all(len(each.acknowledged) > 50 for each in appenders))
                broker.stop()
        for each in appenders:
            each.join(60)
            assert not each.is_alive()
            # A request that was sent while the broker was closing may have met nobody, but
            # everything that was started was answered, or is there.
            assert all(error.retriable for error in each.refused)
        assert (tmp_path / "data").exists()

        before = broker.log_file.read_text()
        broker.start()
        told = broker.log_file.read_text().removeprefix(before)
        assert "after a clean shutdown" in told
        assert broker.address == address
        with connect(broker) as wire:
            wait_until(lambda: is_led(wire, "t"))
            for partition, each in enumerate(appenders):
                there = read_all(wire, partition)
                assert set(each.acknowledged) <= set(there)
                assert there == list(range(len(there)))
                # Not one was written and left without an answer.
                assert len(there) <= len(each.acknowledged) + each.unanswered


@pytest.mark.parametrize(
    "how", [signal.SIGSTOP, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)]
)
@pytest.mark.long
def test_a_broker_stops_cleanly_without_zookeeper(tmp_path: Path, how: signal.Signals) -> None:
    with EmbeddedZooKeeper(tmp_path / "zookeeper", heap_mb=64) as zookeeper:
        directory = tmp_path / "broker"
        with broker_process(directory, f"{zookeeper.address}/logbus") as broker:
            with connect(broker) as wire:
                create_topic(wire, "t")
                wire.append("t", 0, DATA)
                process = zookeeper._process
                assert process is not None
                process.send_signal(how)
                wire.append("t", 0, DATA)
            try:
                broker.stop()
            finally:
                process.send_signal(signal.SIGCONT)
            assert "has stopped" in broker.log_file.read_text()
            if how is signal.SIGKILL:
                stop(process, 1)
                zookeeper.start()
            broker.start()
            assert "after a clean shutdown" in broker.log_file.read_text()


@pytest.mark.long
def test_appends_and_fetches_go_on_while_zookeeper_is_away(tmp_path: Path) -> None:
    outage_s = 5.0  # longer than the broker's session
    with EmbeddedZooKeeper(tmp_path / "zookeeper", heap_mb=64) as zookeeper:
        directory = tmp_path / "broker"
        with (
            broker_process(directory, f"{zookeeper.address}/logbus") as broker,
            connect(broker) as wire,
            connect(broker) as asking,
        ):
            create_topic(wire, "t")
            zookeeper.stop()
            asking.send(Api.CREATE_TOPIC, CreateTopicRequest("later", 1))
            end = time.monotonic() + outage_s
            count = 0
            # If each of them waited for ZooKeeper, so many would take minutes.
            while time.monotonic() < end or count < 30:
                wire.append("t", 0, DATA)
                assert wire.fetch("t", 0, count).results[0].length == len(DATA)
                response = wire.call(Api.METADATA, MetadataRequest(["t"]), MetadataResponse)
                assert [topic.name for topic in response.topics] == ["t"]
                count += 1
            zookeeper.start()
            try:
                asking.answer(Api.CREATE_TOPIC, CreateTopicResponse)
            except CoordinationError:
                asking.call(Api.CREATE_TOPIC, CreateTopicRequest("later", 1), CreateTopicResponse)
            wait_until(lambda: is_led(wire, "later"))
            wire.append("later", 0, DATA)
            assert wire.append("t", 0, DATA).results[0].base_offset == count

            def registered() -> bool:
                response = wire.call(Api.METADATA, MetadataRequest([]), MetadataResponse)
                return [each.broker_id for each in response.brokers] == [1]

            wait_until(registered)


def test_a_broker_refuses_a_directory_of_somebody_elses(tmp_path: Path, chroot: str) -> None:
    data = tmp_path / "data"
    (data / "thesis.deleted").mkdir(parents=True)
    (data / "thesis.deleted" / "chapter.txt").write_text("years of work")
    with (
        pytest.raises(EmbeddedServerError, match="not empty and not a data directory"),
        broker_process(tmp_path, chroot),
    ):
        pass
    assert [path.name for path in data.rglob("*")] == ["thesis.deleted", "chapter.txt"]
    assert (data / "thesis.deleted" / "chapter.txt").read_text() == "years of work"


@pytest.mark.parametrize("rounds", [2, pytest.param(5, marks=pytest.mark.long)])
def test_a_broker_that_goes_on_after_a_stop_hears_sigterm(
    tmp_path: Path, chroot: str, rounds: int
) -> None:
    """The system gives a signal to any thread that can take it, and that is often another one than
    the main thread, which still stands."""
    with broker_process(tmp_path, chroot) as broker:
        for _ in range(rounds):
            with frozen(broker.pid):
                pass
            broker.ask_to_stop()
            wait_until(lambda: not broker.running, deadline_s=60, message="the broker's end")
            broker.start()
