"""One measurement: send to a fresh topic, look at the disk, read all of it, compare."""

from __future__ import annotations

import itertools
from typing import Final

from bench.clients.work import CHECKSUMS, Done, Work
from bench.memory import claim_memory
from bench.paper.contenders import Contender, Task
from bench.paper.servers import Server
from bench.result import Metrics

SENT, READ = "µs a record sent", "µs a record read"
SENT_CPU, READ_CPU = "CPU µs a record sent, client", "CPU µs a record read, client"
ON_DISK = "bytes a record on disk"
RECORDS = "records"
VALUE_BYTES = "bytes a value"

_CLAIMED_BYTES: Final = 2 << 30  # page cache and buffers of a run with few records
_numbers = itertools.count(1)


def measured(contender: Contender, server: Server, *, records: int, value_bytes: int) -> Metrics:
    """Raises SystemExit where what is read is not what was sent."""
    topic = f"paper-{next(_numbers)}"
    task = Task(server.address, topic, contender.records(records), value_bytes, server.java)
    claim_memory(_CLAIMED_BYTES)
    if server.topics is not None:
        server.topics.create_topic(topic, flushed=contender.flushed)
    before = server.stored_bytes(topic)
    sent = contender.client.send(task)
    stored = server.stored_bytes(topic) - before
    read = contender.client.read(task)
    if server.topics is not None:
        server.topics.delete_topic(topic)
    require_same(contender.name, task, read)
    return {
        RECORDS: sent.records,
        SENT: _us_a_record(sent),
        SENT_CPU: 1e6 * (sent.cpu_seconds or 0) / sent.records,
        READ: _us_a_record(read),
        READ_CPU: 1e6 * (read.cpu_seconds or 0) / read.records,
        ON_DISK: stored / (task.records + task.warm_up),
        VALUE_BYTES: value_bytes,
    }


def _us_a_record(done: Done) -> float:
    return 1e6 * done.seconds / done.records


def require_same(name: str, task: Task, read: Done) -> None:
    """All that was sent, as often as it was sent."""
    value = Work("", value_bytes=task.value_bytes)
    expected = task.records + task.warm_up
    checksum = (value.checksum(task.records) + value.checksum(task.warm_up)) % CHECKSUMS
    count = read.records + read.warm_up
    if (count, read.checksum) != (expected, checksum):
        raise SystemExit(
            f"{name}: expected {expected:,} records with the checksum {checksum}, read {count:,} "
            f"with {read.checksum}."
        )
