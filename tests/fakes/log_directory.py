"""Log directories with what they are injected with: a clock, a disk, a flusher without a thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from spark_logbus.broker.replica.watermark import sole_replica
from spark_logbus.errors import LogbusError
from spark_logbus.log import (
    OS_FILES,
    FileSystem,
    LogConfig,
    LogDirectory,
    PartitionLog,
    WantedLog,
)
from spark_logbus.log.disk.flusher import Flushable
from spark_logbus.log.environment import HighWatermarkRule
from spark_logbus.model import TopicPartition
from spark_logbus.record import RecordBatchHeader, split
from tests.fakes.clock import ManualClock

TP = TopicPartition("flights", 0)


TOPIC_ID = "0123456789abcdef0123456789abcdef"


class ManualFlusher:
    """Flushes when a test says so, in the test's thread."""

    def __init__(self) -> None:
        self.requested: list[Flushable] = []
        self.timers: list[tuple[float, Flushable]] = []

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def request(self, log: Flushable) -> None:
        self.requested.append(log)

    def request_at(self, due: float, log: Flushable) -> None:
        self.timers.append((due, log))

    def run(self) -> None:
        requested, self.requested = self.requested, []
        for log in requested:
            log.flush()


def ensure_one(
    directory: LogDirectory,
    topic_partition: TopicPartition,
    *,
    topic_id: str,
    config: Mapping[str, str],
    known_end: int | None = None,
) -> PartitionLog:
    """The log of one partition; raises what ``ensure_all`` has in its place."""
    wanted = WantedLog(topic_partition, topic_id, config, known_end)
    log = directory.ensure_all([wanted])[topic_partition]
    if isinstance(log, LogbusError):
        raise log.again() from log.__cause__
    return log


class SlowFollower:
    """A rule for the high watermark: no further than a follower has come, if there is one."""

    def __init__(self) -> None:
        self.end: int | None = None

    def __call__(self, _: TopicPartition, safe_end: int) -> int:
        return safe_end if self.end is None else min(safe_end, self.end)


class Broker:
    """A log directory and what it is injected with; restarted as often as a test likes."""

    def __init__(
        self,
        path: Path = Path("/data"),
        *,
        files: FileSystem = OS_FILES,
        config: LogConfig | None = None,
        topic_config: Mapping[str, str] | None = None,
        watermark: HighWatermarkRule = sole_replica,
    ) -> None:
        self.path = path
        self.watermark = watermark
        self.files = files
        self.config = config or LogConfig()
        self.topic_config = topic_config or {}
        self.clock = ManualClock()
        self.start()

    def start(self, *, told: bool = True) -> None:
        """``told``: what ZooKeeper says of the topics follows at once."""
        self.flusher = ManualFlusher()
        self.directory = LogDirectory(
            self.path,
            defaults=self.config,
            clock=self.clock,
            files=self.files,
            flusher=self.flusher,
            watermark=self.watermark,
        )
        self.directory.open()
        for log in self.directory.logs() if told else ():
            ensure_one(
                self.directory, log.topic_partition, topic_id=log.topic_id, config=log.kept_config
            )

    def remove(self, topic_partition: TopicPartition, *, topic_id: str) -> None:
        """Removes one partition; raises the error that the directory answers."""
        for error in self.directory.remove({topic_partition: topic_id}).values():
            raise error

    def restart(self) -> None:
        self.directory.close()
        self.start()

    def log(self, topic_partition: TopicPartition = TP) -> PartitionLog:
        """The log, with the broker's configuration unless a test gave it another."""
        return self.directory.get(topic_partition) or ensure_one(
            self.directory, topic_partition, topic_id=TOPIC_ID, config=self.topic_config
        )

    def append(self, *record_batches: memoryview, flush: bool = True) -> int:
        """Append each by itself; the log end offset."""
        log = self.log()
        for data in record_batches:
            log.append_as_leader(data, leader_epoch=1)
        if flush:
            log.flush()
        return log.ends().log_end_offset

    def log_path(self, topic_partition: TopicPartition = TP) -> Path:
        return self.path / str(topic_partition)


def batches_from(
    log: PartitionLog, offset: int, *, max_bytes: int = 1 << 20, end: int | None = None
) -> Iterator[tuple[RecordBatchHeader, bytes]]:
    """All visible record batches from ``offset`` on, verified, slice by slice."""
    while True:
        found = log.read(offset, max_bytes=max_bytes, end=end)
        if found is None:
            return
        for header, data in split(found.read(), allow_tail=False):
            yield header, bytes(data)
            offset = header.next_offset


def offsets_from(log: PartitionLog, offset: int, **options: int) -> list[int]:
    return [header.base_offset for header, _ in batches_from(log, offset, **options)]
