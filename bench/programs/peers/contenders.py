"""Who is measured, with which client and settings, and what an acknowledgement means there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from bench.kit.result import LOGBUS
from bench.programs.clients.work import LIBRDKAFKA_READS, VALUES, Done, Work
from bench.programs.clients.worker import run
from bench.programs.peers.java_clients import run_java
from bench.servers.java_programs import JavaProgram

UNTOLD: Final = "not told"  # it is in memory
PAGE_CACHE: Final = "page cache"
DISK: Final = "disk"

_DEADLINE_S = 3_600.0
_WARM_UP = 50_000  # enough for a just-in-time compiler to have seen the loops


@dataclass(frozen=True)
class Task:
    """Task of a client."""

    address: str
    topic: str
    records: int
    value_bytes: int
    java: JavaProgram | None
    """The client in Java of this server."""

    @property
    def warm_up(self) -> int:
        """Records that are sent before the clock starts."""
        return min(_WARM_UP, max(1, self.records // 4 // VALUES) * VALUES)


class Client(Protocol):
    @property
    def described(self) -> str:
        """Text about the client and its settings, for the conditions of the run."""

    def send(self, task: Task) -> Done: ...

    def read(self, task: Task) -> Done:
        """Reads all that ``send`` has sent, also to warm up."""


@dataclass(frozen=True)
class PythonClient:
    """Functions of bench.programs.clients."""

    sends: Work
    reads: str
    """The function that reads."""
    reads_with: str = ""
    """Its settings, for who reads the results."""

    @property
    def described(self) -> str:
        work = self.sends
        size = f"{work.batch_records or 'all'} records or {work.batch_bytes:,} bytes a record batch"
        sends = f"{work.name}, {size}, linger {work.linger_ms} ms"
        return f"Python: {sends}; {self.reads}{self.reads_with}"

    def send(self, task: Task) -> Done:
        work = replace(self._work(task), records=task.records, warm_up=task.warm_up)
        return run(work, deadline_s=_DEADLINE_S)

    def read(self, task: Task) -> Done:
        records = task.records + task.warm_up
        work = replace(self._work(task), name=self.reads, records=records, checksummed=True)
        return run(work, deadline_s=_DEADLINE_S)

    def _work(self, task: Task) -> Work:
        return replace(
            self.sends, address=task.address, topic=task.topic, value_bytes=task.value_bytes
        )


@dataclass(frozen=True)
class JavaClient:
    """The client in Java of this server, with settings by the names of its program."""

    sends: Mapping[str, str]
    reads: Mapping[str, str]

    @property
    def described(self) -> str:
        shown = [
            ", ".join(f"{name}={value}" for name, value in each.items())
            for each in (self.sends, self.reads)
        ]
        return f"Java: sends with {shown[0] or 'defaults'}; reads with {shown[1] or 'defaults'}"

    def send(self, task: Task) -> Done:
        return self._run(task, "send", self.sends, task.records, task.warm_up)

    def read(self, task: Task) -> Done:
        return self._run(task, "receive", self.reads, task.records + task.warm_up, 0)

    @staticmethod
    def _run(
        task: Task, does: str, settings: Mapping[str, str], records: int, warm_up: int
    ) -> Done:
        assert task.java is not None
        given = {
            **settings, "does": does, "address": task.address, "topic": task.topic,
            "records": records, "warm_up": warm_up, "value_bytes": task.value_bytes,
        }  # fmt: skip
        return run_java(task.java, given, deadline_s=_DEADLINE_S)


@dataclass(frozen=True)
class Contender:
    name: str
    server: str
    acknowledged: str
    """Where a record is when the producer learns that it was taken."""
    client: Client
    share: int = 1
    """It gets so many times fewer records than the others, as it is slow."""
    flushed: bool = False
    """The topic is one that flushes each append."""

    @property
    def is_own(self) -> bool:
        return self.server == LOGBUS

    def records(self, wanted: int) -> int:
        """Whole rounds of the values, so that who cuts them anew has the same checksum."""
        return max(1, wanted // self.share // VALUES) * VALUES


KAFKA, RABBITMQ, ACTIVEMQ = "Kafka", "RabbitMQ", "ActiveMQ"
ACTIVEMQ_FLUSHED = "ActiveMQ that syncs"
"""A server of its own: it is a setting of the whole broker."""
RABBITMQ_STREAMS = "RabbitMQ's streams"
"""The same broker, spoken to by another protocol with another client."""
LIBRDKAFKA = "Kafka, librdkafka"

_OF_SLOW: Final = 50  # share of queues, and of records that are sent one by one


def _logbus(name: str, sends: Work, reads: str, *, share: int = 1) -> Contender:
    client = PythonClient(sends, reads)
    acknowledged = DISK if sends.flushed else PAGE_CACHE
    return Contender(name, LOGBUS, acknowledged, client, share, flushed=sends.flushed)


def _librdkafka(
    sends: Work,
    reads: str = "consume",
    reads_with: str = str(LIBRDKAFKA_READS),
    *,
    share: int = 1,
) -> Contender:
    client = PythonClient(replace(sends, system="librdkafka"), reads, f", {reads_with}")
    acknowledged = DISK if sends.flushed else PAGE_CACHE
    return Contender(LIBRDKAFKA, KAFKA, acknowledged, client, share, flushed=sends.flushed)


def _kafka(
    sends: Mapping[str, str],
    reads: Mapping[str, str],
    *,
    name: str = KAFKA,
    acknowledged: str = PAGE_CACHE,
    share: int = 1,
) -> Contender:
    flushed = acknowledged == DISK
    return Contender(name, KAFKA, acknowledged, JavaClient(sends, reads), share, flushed=flushed)


def _rabbitmq(
    kind: str,
    acknowledged: str,
    sends: Mapping[str, str],
    reads: Mapping[str, str],
) -> Contender:
    """A classic queue, by AMQP; ``kind`` is the word for its messages in its documentation."""
    client = JavaClient(sends, reads)
    return Contender(f"{RABBITMQ}, {kind}", RABBITMQ, acknowledged, client, _OF_SLOW)


def _rabbitmq_stream(sends: Mapping[str, str], *, share: int = 1) -> Contender:
    client = JavaClient(sends, {})
    return Contender(f"{RABBITMQ}, stream", RABBITMQ_STREAMS, PAGE_CACHE, client, share)


def _activemq(sends: Mapping[str, str], reads: Mapping[str, str]) -> Contender:
    return Contender(ACTIVEMQ, ACTIVEMQ, PAGE_CACHE, JavaClient(sends, reads), _OF_SLOW)


@dataclass(frozen=True)
class Row:
    """Contenders whose messages are sent alike."""

    title: str
    contenders: tuple[Contender, ...]


_ONE = Work("send", batch_records=1, linger_ms=0)
_FIFTY = Work("send", batch_records=50)
# One record of 200 bytes with its record batch takes 270 bytes, 50 take 10,511.
_KAFKA_ONE = {"acks": "1", "batch.size": "1"}
_KAFKA_FIFTY = {"acks": "1", "batch.size": "10600", "linger.ms": "50"}
_KAFKA_TUNED = {"acks": "1", "batch.size": str(1 << 20), "linger.ms": "50"}
_KAFKA_READS_TUNED = {"max.partition.fetch.bytes": str(2 << 20), "max.poll.records": "10000"}

_TRANSIENT = {"persistent": "false", "confirms": "false"}
_CONFIRMED = {"persistent": "true", "confirms": "true"}
_RABBIT_READS = {"prefetch": "1000", "ack_every": "100"}
_RABBIT_READS_BY_DEFAULT = {"prefetch": "0", "ack_every": "1"}

_STREAM_ONE = {"batch_size": "1"}  # in a frame
# Messages that are stored as one entry, which is what its documentation names for throughput.
_STREAM_FIFTY = {"sub_entry_size": "50"}
_STREAM_TUNED = {"sub_entry_size": "500", "batch_size": "1000", "unconfirmed": "100000"}

# Sends that are not in transactions wait for an answer each, by default.
_ACTIVE_ONE = {"options": "jms.useAsyncSend=true"}
_ACTIVE_FIFTY = {"options": "", "transaction": "50"}
_ACTIVE_TUNED = {
    "options": "jms.useAsyncSend=true&jms.copyMessageOnSend=false",
    "transaction": "1000",
}
_ACTIVE_EACH = {"options": ""}
_ACTIVE_READS = {"options": "", "acknowledge": "auto"}
_ACTIVE_READS_TUNED = {
    "options": "jms.alwaysSessionAsync=false&jms.prefetchPolicy.queuePrefetch=10000",
    "acknowledge": "dups_ok",
}

_ARROW_RECORDS: Final = 4_000  # whole rounds of the values, in somewhat less than 1 MiB


def _of_copies(*, flushed: bool) -> tuple[Contender, ...]:
    """Contenders whose records are acknowledged when all replicas in sync have them."""
    own = Work("send", flushed=flushed, acks="replicated")
    return (
        _kafka(
            {**_KAFKA_TUNED, "acks": "all"},
            _KAFKA_READS_TUNED,
            acknowledged=DISK if flushed else PAGE_CACHE,
        ),
        _librdkafka(Work("send", flushed=flushed, acks="all")),
        _logbus(
            "logbus, Arrow",
            replace(own, name="send_arrow", batch_records=_ARROW_RECORDS),
            "poll_arrow",
        ),
        _logbus(LOGBUS, own, "iterate"),
    )


REPLICATED_ROWS: Mapping[str, Row] = {
    "copies-on-disk": Row(
        "acknowledged when all replicas in sync have it on disk", _of_copies(flushed=True)
    ),
    "copies-in-page-cache": Row(
        "acknowledged when all replicas in sync have it in the page cache",
        _of_copies(flushed=False),
    ),
}

ROWS: Mapping[str, Row] = {
    "batch-1": Row(
        "each record sent by itself, a record batch for each where there are some",
        (
            _kafka(_KAFKA_ONE, {}, share=_OF_SLOW),
            _kafka(
                {**_KAFKA_ONE, "acks": "0"},
                {},
                name="Kafka, acks=0",
                acknowledged=UNTOLD,
                share=_OF_SLOW,
            ),
            _librdkafka(_ONE, share=_OF_SLOW),
            _rabbitmq("transient", UNTOLD, _TRANSIENT, _RABBIT_READS),
            _rabbitmq("persistent", DISK, _CONFIRMED, _RABBIT_READS),
            _rabbitmq_stream(_STREAM_ONE, share=_OF_SLOW),
            _activemq(_ACTIVE_ONE, _ACTIVE_READS),
            _logbus(LOGBUS, _ONE, "iterate", share=_OF_SLOW),
        ),
    ),
    "batch-50": Row(
        "batches of 50 records",
        (
            _kafka(_KAFKA_FIFTY, {}),
            _librdkafka(_FIFTY),
            _rabbitmq_stream(_STREAM_FIFTY),
            _activemq(_ACTIVE_FIFTY, _ACTIVE_READS),
            _logbus("logbus, Arrow", replace(_FIFTY, name="send_arrow"), "poll_arrow"),
            _logbus(LOGBUS, _FIFTY, "iterate"),
        ),
    ),
    "throughput": Row(
        "with what the documentation names for throughput",
        (
            _kafka(_KAFKA_TUNED, _KAFKA_READS_TUNED),
            _librdkafka(Work("send")),
            _rabbitmq_stream(_STREAM_TUNED),
            _activemq(_ACTIVE_TUNED, _ACTIVE_READS_TUNED),
            _logbus("logbus, Arrow", Work("send_many"), "poll_arrow"),
            _logbus(LOGBUS, Work("send"), "iterate"),
        ),
    ),
    "defaults": Row(
        "with the defaults of servers and clients",
        (
            _kafka({}, {}),
            _librdkafka(
                Work("send_by_default", linger_ms=5, batch_bytes=1_000_000),  # what these are
                "consume_by_default",
                "with defaults",
            ),
            _rabbitmq("transient", UNTOLD, _TRANSIENT, _RABBIT_READS_BY_DEFAULT),
            _rabbitmq_stream({}),
            Contender(
                ACTIVEMQ,
                ACTIVEMQ_FLUSHED,
                DISK,
                JavaClient(_ACTIVE_READS, _ACTIVE_READS),
                share=200,
            ),
            _logbus(LOGBUS, Work("send", flushed=True, linger_ms=5), "iterate"),
        ),
    ),
}
