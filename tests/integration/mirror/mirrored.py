"""Two clusters, a mirror between them, and the question whether the copy equals its topic."""

from __future__ import annotations

import itertools
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from spark_logbus.client import (
    Admin,
    ClientConfig,
    Cluster,
    Consumer,
    Producer,
    ProducerConfig,
    RangeReader,
)
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.local.processes import spawn
from spark_logbus.mirror import Mirror, MirrorConfig, Renaming, open_mirror
from spark_logbus.mirror.round import RoundReport
from spark_logbus.mirror.run import CLIENT
from spark_logbus.model import Compression, Earliest, Latest, OffsetRange, TopicPartition
from spark_logbus.record.format import HEADER_SIZE
from spark_logbus.selection import Selection, Topics
from tests.servers.broker import broker_process
from tests.servers.spark_processes import environment

_CONFIG = ClientConfig(client_id="test", retry_backoff_ms=10, retry_backoff_max_ms=100)
_numbers = itertools.count(1)

T0_US = 1_700_000_000_000_000


class Found(NamedTuple):
    """A record as consumers see it, but for its offset."""

    partition: int
    timestamp_us: int
    key: bytes | None
    value: Any
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass
class Pair:
    """Two clusters of a broker each: a source, and a target that mirrors copy to."""

    source_zookeeper: str
    target_zookeeper: str
    source_broker: BrokerProcess
    target_broker: BrokerProcess
    source: Cluster
    target: Cluster
    _sent: dict[str, int] = field(default_factory=dict)

    def topic(self, *, partitions: int = 2, **config: str) -> str:
        """Makes a topic of the source that no other test has; records in it never expire."""
        name = f"topic-{next(_numbers)}"
        dotted = {key.replace("_", "."): value for key, value in config.items()}
        Admin(self.source).create_topic(
            name, partitions=partitions, config={"retention.ms": "-1", **dotted}
        )
        return name

    def produce(
        self,
        topic: str,
        count: int,
        *,
        keys: int = 10,
        compression: Compression = Compression.NONE,
        batch_bytes: int = 4_000,
    ) -> None:
        """Records of all shapes, which no two calls repeat: tombstones, headers, no keys."""
        config = ProducerConfig(compression=compression, batch_bytes=batch_bytes, linger_ms=5)
        first = self._sent.get(topic, 0)
        self._sent[topic] = first + count
        with Producer(self.source, config) as producer:
            futures = [
                producer.send(
                    topic,
                    None if number % 7 == 6 else b"%d " % number + bytes(number % 90),
                    key=None if keys == 0 else b"key-%d" % (number * 7 % keys),
                    headers=[("n", b"%d" % number), ("none", None)] if number % 3 == 0 else None,
                    timestamp_us=T0_US + number * 1000,
                )
                for number in range(first, first + count)
            ]
        for future in futures:
            future.result(60)

    @contextmanager
    def mirror(
        self,
        topics: Selection | str,
        *,
        name: str | None = None,
        rename: str = "{topic}",
        client: ClientConfig = CLIENT,
        **settings: Any,
    ) -> Iterator[Mirror]:
        """A mirror of that name, by default of the first topic's."""
        if isinstance(topics, str):
            name = name or f"mirror-{topics}"
            topics = Topics((topics,))
        config = MirrorConfig(
            name=name or "mirror", topics=topics, renaming=Renaming(rename), **settings
        )
        with open_mirror(
            config,
            target=self.target_zookeeper,
            zookeeper=self.source_zookeeper,
            client=client,
        ) as opened:
            yield opened


class MirrorProcess:
    """A mirror in a process of its own; killed at the end of its block."""

    def __init__(
        self, words: list[str], log: Path, more_environment: Mapping[str, str] | None = None
    ) -> None:
        env = {**environment(), **(more_environment or {})}
        self._process = spawn([sys.executable, "-m", *words], output=log, env=env)

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def terminate(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)

    def __enter__(self) -> MirrorProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def copy_all(mirror: Mirror) -> list[RoundReport]:
    """Copies all that is new, round by round."""
    return list(iter(mirror.copy_round, None))


def records(cluster: Cluster, topic: str) -> list[Found]:
    """All records of a topic, partition by partition, in their order."""
    ends = spans(cluster, topic)
    total: list[Found] = []
    with Consumer(cluster) as consumer:
        for at, (start, end) in sorted(ends.items()):
            consumer.assign([at])
            position = start
            while position < end:
                found = consumer.poll(60, max_records=5_000)
                total += [
                    Found(each.partition, each.timestamp_us, each.key, each.value, each.headers)
                    for each in found
                ]
                position = found[-1].offset + 1 if found else consumer.position(at)
                if not found:
                    break
    return total


def spans(cluster: Cluster, topic: str) -> dict[TopicPartition, tuple[int, int]]:
    admin = Admin(cluster)
    partitions = [TopicPartition(topic, each) for each in admin.describe([topic])[topic].partitions]
    starts = admin.list_offsets(dict.fromkeys(partitions, Earliest()))
    ends = admin.list_offsets(dict.fromkeys(partitions, Latest()))
    return {at: (starts[at] or 0, ends[at] or 0) for at in partitions}


def payloads(cluster: Cluster, topic: str) -> list[list[bytes]]:
    """The bytes of record batches behind their headers, of each partition."""
    found = []
    for at, (start, end) in sorted(spans(cluster, topic).items()):
        of_partition = []
        with RangeReader(cluster, OffsetRange(at, start, end)) as reader:
            while (raw := reader.next_encoded()) is not None:
                of_partition.append(bytes(raw.data[HEADER_SIZE:]))
        found.append(of_partition)
    return found


def assert_equal(pair: Pair, topic: str, copy: str | None = None) -> int:
    """Record by record; the number of them."""
    expected, copied = records(pair.source, topic), records(pair.target, copy or topic)
    assert len(copied) == len(expected)
    assert copied == expected
    return len(expected)


@contextmanager
def two_clusters(
    zookeeper: str, directory: Path, *, settings: Mapping[str, Mapping[str, Any]] | None = None
) -> Iterator[Pair]:
    """``zookeeper`` is an address without a chroot, which both share."""
    number = next(_numbers)
    roots = [f"{zookeeper}/source-{number}", f"{zookeeper}/target-{number}"]
    with ExitStack() as open_:
        brokers: Sequence[BrokerProcess] = [
            open_.enter_context(
                broker_process(directory / name, root, settings={**_QUICK, **(settings or {})})
            )
            for name, root in zip(("source", "target"), roots, strict=True)
        ]
        clusters = [open_.enter_context(Cluster.from_zookeeper(root, _CONFIG)) for root in roots]
        yield Pair(roots[0], roots[1], brokers[0], brokers[1], clusters[0], clusters[1])


_QUICK: Mapping[str, Mapping[str, Any]] = {"compaction": {"check_interval_ms": 100}}
