"""The protocol under fire: through the handlers in this process, and over a broker's socket.

A failure names the seed of its input: ``LOGBUS_FUZZ_SEED=<seed>`` begins there again.
LOGBUS_FUZZ_SECONDS is how long the slow tests go on.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_logbus.broker.handlers.work_executor import WorkExecutor
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.errors import CoordinationError, LogbusError
from spark_logbus.log import LogConfig
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.network import Answer, DelayedResponse, NoResponse, NotYet, Response
from spark_logbus.network.config import NetworkConfig
from spark_logbus.protocol import Api, FrameLimits, FrameReader, decode_response
from tests.builders.hostile_values import TOPIC
from tests.fakes.broker_parts import TOPIC_ID, Logs, logs_in
from tests.fakes.handlers import Peer, dispatcher_over
from tests.fuzz.requests import nearly_valid
from tests.helpers import wait_until
from tests.servers.broker import broker_process, connect, create_topic
from tests.servers.peers import resident_mib, works

SECONDS = float(os.environ.get("LOGBUS_FUZZ_SECONDS", "600"))
FIRST = int(os.environ.get("LOGBUS_FUZZ_SEED", random.SystemRandom().randrange(1 << 40)))
SMOKE_S = 2.0
HANG_S = 60.0
FEWEST_INPUTS = 200  # on a machine that does much else


class NoZooKeeper:
    """Stand-in for what asks ZooKeeper, when that is away."""

    brokers = (BrokerAddress(1, "127.0.0.1", 1, None),)
    topics = {TOPIC: TopicRecord(TOPIC, TOPIC_ID, {0: [1]}, {})}  # noqa: RUF012

    def leader(self, record: TopicRecord, partition: int) -> tuple[int, int]:
        return record.partitions[partition][0], 0

    def state(self, record: TopicRecord, partition: int) -> None:
        """No state is known of any partition."""

    def away(self, *_: object, **__: object) -> None:
        raise CoordinationError("ZooKeeper is away.")

    look_up = look_up_brokers = create = delete = alter = decide = abort = peek = away
    find_decided = pending = away


class Target:
    """Frames and handlers as in a broker, on real logs; no sockets."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._log = logs.lead(TopicPartition(TOPIC, 0))
        self.executor = WorkExecutor("ZooKeeper", clock=logs.clock, max_wait_ms=60_000)
        network = NetworkConfig()
        self._limits = FrameLimits(network.max_frame_bytes, network.max_header_bytes)
        self._peer = Peer(handshaken=True).as_connection()
        self._dispatcher = dispatcher_over(
            logs,
            self.executor,
            metadata_cache=NoZooKeeper(),
            topics=NoZooKeeper(),
            writers=NoZooKeeper(),
            max_wait_ms=60_000,
        )

    def feed(self, data: bytes) -> str:
        """Says in a word what becomes of a stream of frames."""
        reader, view = FrameReader(self._limits), memoryview(data)
        outcome = "incomplete"
        while view:
            try:
                buffer = reader.buffer()
                count = min(len(buffer), len(view))
                buffer[:count] = view[:count]
                view = view[count:]
                frame = reader.advance(count)
            except LogbusError:
                return "no frame"
            if frame is not None:
                answer = self._dispatcher.dispatch(self._peer, frame)
                outcome = self._outcome(frame.api, answer)
        return outcome

    def _outcome(self, api: int, answer: Answer) -> str:
        assert not isinstance(answer, NotYet), "the lease is current"
        if isinstance(answer, NoResponse):
            return "no reply"
        if isinstance(answer, DelayedResponse):
            self._logs.clock.advance(61.0)

            def poll() -> Response | None:
                self._logs.flush()
                return answer.poll()

            reply = wait_until(poll, deadline_s=HANG_S)
            assert reply is not None
        else:
            reply = answer
        assert len(reply.header) + reply.payload_length < 4 << 20
        try:
            decode_response(Api(api) if api in list(Api) else Api.HANDSHAKE, reply.header)
        except LogbusError:
            return "error"
        return "done"


def fuzz(attempt: Callable[[random.Random], str], *, seconds: float, first: int) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    seed, end = first, time.monotonic() + seconds
    while time.monotonic() < end or outcomes.total() < FEWEST_INPUTS:
        started = time.monotonic()
        try:
            outcomes[attempt(random.Random(seed))] += 1
        except BaseException as failure:
            failure.add_note(f"Begin there again with LOGBUS_FUZZ_SEED={seed}.")
            raise
        took = time.monotonic() - started
        assert took < HANG_S, f"input {seed} took {took:.1f} s"
        seed += 1
    return outcomes


def requests(dice: random.Random) -> bytes:
    return b"".join(nearly_valid(dice) for _ in range(dice.choice((1, 1, 2, 5))))


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    config = LogConfig(segment_bytes=1 << 20, index_interval_bytes=128, retention_bytes=8 << 20)
    with logs_in(tmp_path / "data", config) as logs:
        target = Target(logs)
        yield target
        target.executor.stop()


def through_the_handlers(target: Target, *, seconds: float, first: int) -> None:
    before = resident_mib(os.getpid())
    outcomes = fuzz(lambda dice: target.feed(requests(dice)), seconds=seconds, first=first)
    assert {"done", "error", "no frame"} <= outcomes.keys(), "inputs of one kind are no test"
    assert resident_mib(os.getpid()) - before < 200


def over_a_socket(directory: Path, zookeeper: str, *, seconds: float, first: int) -> None:
    settings = {
        "broker": {"max_partitions_per_topic": 4, "max_partitions_per_broker": 30},
        # A fetch may ask to wait for ever, and is right to: the broker bounds that.
        # Few connections: one that ended and is still counted is soon one too many.
        "network": {
            "threads": 4,
            "stall_timeout_ms": 5_000,
            "max_wait_ms": 2_000,
            "max_connections_per_address": 10,
        },
        "log": {"segment_bytes": 1 << 20, "retention_bytes": 8 << 20},
    }
    with broker_process(directory, zookeeper, settings=settings) as broker, connect(broker) as good:
        create_topic(good, "t")
        create_topic(good, TOPIC)
        assert works(broker, good)
        before = resident_mib(broker.pid)
        count = 0

        def attempt(dice: random.Random) -> str:
            nonlocal count
            count += 1
            if count % 100 == 0:
                assert works(broker, good)
            answers = 0
            with connect(broker) as bad:
                bad.sock.settimeout(HANG_S)
                try:
                    bad.sock.sendall(requests(dice))
                    bad.sock.shutdown(socket.SHUT_WR)
                    while data := bad.sock.recv(1 << 20):
                        answers += len(data)
                except TimeoutError:
                    raise
                except OSError:
                    pass  # it ended the connection
            return "answered" if answers else "ended"

        outcomes = fuzz(attempt, seconds=seconds, first=first)
        assert {"answered", "ended"} <= outcomes.keys()
        assert works(broker, good)
        assert broker.running
        assert resident_mib(broker.pid) - before < 100
    told = broker.log_file.read_text()
    assert "unexpectedly" not in told
    assert "foreseen" not in told


def test_nearly_valid_requests_get_typed_errors(target: Target) -> None:
    through_the_handlers(target, seconds=SMOKE_S, first=0)


def test_nearly_valid_requests_never_disturb_a_broker(tmp_path: Path, chroot: str) -> None:
    over_a_socket(tmp_path, chroot, seconds=SMOKE_S, first=0)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_nearly_valid_requests_get_typed_errors_at_length(target: Target) -> None:
    through_the_handlers(target, seconds=SECONDS / 2, first=FIRST)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_nearly_valid_requests_never_disturb_a_broker_at_length(
    tmp_path: Path, chroot: str
) -> None:
    over_a_socket(tmp_path, chroot, seconds=SECONDS / 2, first=FIRST)
