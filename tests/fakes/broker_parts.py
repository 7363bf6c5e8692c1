"""What the tests of the broker's parts share: logs without a flusher thread, stub partitions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from spark_logbus.broker.replica.followers import Followers
from spark_logbus.broker.replica.in_sync import InSync
from spark_logbus.broker.replica.manager import ReplicaManager
from spark_logbus.broker.replica.states import LeaderPartition
from spark_logbus.broker.replica.watermark import HighWatermarks, sole_replica
from spark_logbus.clock import Clock
from spark_logbus.coordination.cluster.lease import Lease
from spark_logbus.coordination.cluster.partition_states import PartitionStates
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.errors import NotLeaderError
from spark_logbus.log import LogConfig, LogDirectory, PartitionLog
from spark_logbus.log.environment import HighWatermarkRule
from spark_logbus.model import TopicPartition
from spark_logbus.network import Answer, DelayedResponse, Response
from spark_logbus.protocol import Api, Message, decode_response
from tests.builders.record_batches import record_batch
from tests.fakes.clock import ManualClock
from tests.fakes.log_directory import ManualFlusher, ensure_one

__all__ = [
    "EPOCH",
    "T0",
    "T1",
    "LedHere",
    "Logs",
    "Polled",
    "held_lease",
    "in_sync_over",
    "logs_in",
    "message_of",
    "record_batch",
    "reply",
]

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
TOPIC_ID = "a" * 32
EPOCH = 7
BROKER_ID = 5


class Polled(DelayedResponse):
    """A deferred answer that a function gives."""

    def __init__(self, poll: Callable[[], Response | None], *, deadline: float) -> None:
        super().__init__(deadline=deadline)
        self._poll = poll

    def poll(self) -> Response | None:
        return self._poll()


class LedHere:
    """Stands in for ``ReplicaManager``: leads what it is told to."""

    def __init__(self) -> None:
        self.led: dict[TopicPartition, LeaderPartition] = {}

    def leader_of(self, topic_partition: TopicPartition) -> LeaderPartition:
        led = self.led.get(topic_partition)
        if led is None:
            raise NotLeaderError(f"{topic_partition} is not led here.")
        return led

    def find(self, topic_partition: TopicPartition) -> LeaderPartition | None:
        return self.led.get(topic_partition)

    def let_go(
        self, topic_partition: TopicPartition, led: LeaderPartition, *, follows: bool = False
    ) -> None:
        if self.led.get(topic_partition) is led:
            del self.led[topic_partition]

    def as_replica_manager(self) -> ReplicaManager:
        return cast(ReplicaManager, self)


def held_lease() -> Lease:
    """The lease of a broker whose id is certain for ever."""
    lease = Lease(timeout_ms=10_000, ask=lambda _: True, elapsed_s=lambda: 0.0)
    lease._look()
    return lease


def in_sync_over(
    clock: Clock,
    *,
    broker_id: int = BROKER_ID,
    followers: Followers | None = None,
    watermarks: HighWatermarks | None = None,
    states: PartitionStates | None = None,
    topics: Mapping[str, TopicRecord] | None = None,
    live: Collection[int] = (),
) -> InSync:
    """The in-sync sets of a broker; with nothing given, all partitions have one replica."""
    return InSync(
        broker_id,
        states=states or cast(PartitionStates, None),
        followers=followers or Followers(clock=clock, written=lambda _: None),
        watermarks=watermarks or HighWatermarks(),
        topic=(topics or {}).get,
        live=lambda: live,
        is_certain=lambda: True,
        lag_max_ms=10_000,
        clock=clock,
    )


class Logs:
    """Logs that flush when the test says so."""

    def __init__(
        self,
        path: Path,
        config: LogConfig | None = None,
        *,
        watermark: HighWatermarkRule = sole_replica,
    ) -> None:
        self.watermark = watermark
        self.clock = ManualClock()
        self.flusher = ManualFlusher()
        self.directory = self._opened(path, config or LogConfig())
        self.here = LedHere()
        #: All partitions have one replica, unless a test puts another in its place.
        self.in_sync = in_sync_over(self.clock)

    def _opened(self, path: Path, config: LogConfig) -> LogDirectory:
        directory = LogDirectory(
            path, defaults=config, clock=self.clock, flusher=self.flusher, watermark=self.watermark
        )
        directory.open()
        return directory

    def restart(self) -> None:
        """Restarts the log directory only: tests tell again what it leads."""
        self.directory.close()
        self.directory = self._opened(self.directory._path, self.directory._defaults)

    def lead(self, topic_partition: TopicPartition) -> PartitionLog:
        log = ensure_one(self.directory, topic_partition, topic_id=TOPIC_ID, config={})
        led = self.here.led[topic_partition] = LeaderPartition(log, EPOCH)
        self.in_sync.lead(led, PartitionState(BROKER_ID, EPOCH, [BROKER_ID]))
        return log

    def flush(self) -> None:
        requested, self.flusher.requested = self.flusher.requested, []
        for log in requested:
            log.flush()


@contextmanager
def logs_in(
    path: Path, config: LogConfig | None = None, *, watermark: HighWatermarkRule = sole_replica
) -> Iterator[Logs]:
    logs = Logs(path, config, watermark=watermark)
    try:
        yield logs
    finally:
        logs.directory.close()


def reply(answer: Answer) -> Response:
    """The reply of an answer that is there, or can be had."""
    if isinstance(answer, DelayedResponse):
        found = answer.poll()
        assert found is not None, "the answer is not there yet"
        return found
    assert isinstance(answer, Response)
    return answer


def message_of(api: Api, answer: Answer) -> Message:
    """The response message; raises the error if it is one."""
    return decode_response(api, reply(answer).header)
