"""What the tests of the log are made of: record batches, a clock, a flusher without a thread."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from spark_logbus.log import OS_FILES, FileSystem, LogConfig, LogDirectory, PartitionLog
from spark_logbus.log.flusher import Flushable
from spark_logbus.model import TopicPartition
from spark_logbus.record import HEADER_SIZE, RecordBatchHeader, checksum, split
from spark_logbus.record import format as fmt

TP = TopicPartition("flights", 0)
TOPIC_ID = "0123456789abcdef0123456789abcdef"
SECOND = 1_000_000
NOW_US = 1_800_000_000 * SECOND


def record_batch(
    count: int = 1,
    *,
    payload: bytes = b"payload!",
    timestamps: tuple[int, int] = (NOW_US, NOW_US),
) -> memoryview:
    """A record batch that the log accepts; it never looks into the payload."""
    payload += bytes(-len(payload) % fmt.ALIGNMENT)
    length = HEADER_SIZE + len(payload) - fmt.LENGTH_FIELD_END
    header = fmt.HEADER.pack(
        0, length, 0, 0, fmt.MAGIC_V1, 0, 0, 0, count, count - 1, *timestamps, -1, -1, -1, 0
    )
    data = bytearray(header + payload)
    fmt.CRC.pack_into(data, fmt.CRC_AT, checksum(data))
    return memoryview(data)


def joined(*record_batches: memoryview) -> memoryview:
    return memoryview(bytearray(b"".join(record_batches)))


class ManualClock:
    """Time that passes only when a test says so."""

    def __init__(self) -> None:
        self.wall_us = NOW_US
        self.seconds = 1000.0

    def now_us(self) -> int:
        return self.wall_us

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.wall_us += int(seconds * SECOND)
        self.seconds += seconds

    def jump(self, seconds: float) -> None:
        """The wall clock is set; no time passes."""
        self.wall_us += int(seconds * SECOND)


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


class Broker:
    """A log directory and what it is injected with; restarted as often as a test likes."""

    def __init__(
        self,
        path: Path = Path("/data"),
        *,
        files: FileSystem = OS_FILES,
        config: LogConfig | None = None,
    ) -> None:
        self.path = path
        self.files = files
        self.config = config or LogConfig()
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
        )
        self.directory.open()
        for log in self.directory.logs() if told else ():
            self.directory.ensure(
                log.topic_partition, topic_id=log.topic_id, config=log.kept_config
            )

    def restart(self) -> None:
        self.directory.close()
        self.start()

    def log(self, topic_partition: TopicPartition = TP) -> PartitionLog:
        """The log, with the broker's configuration unless a test gave it another."""
        return self.directory.get(topic_partition) or self.directory.ensure(
            topic_partition, topic_id=TOPIC_ID, config={}
        )

    def append(self, *record_batches: memoryview, flush: bool = True) -> int:
        """Append each by itself; the log end offset."""
        log = self.log()
        for data in record_batches:
            log.append(data, leader_epoch=1)
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
