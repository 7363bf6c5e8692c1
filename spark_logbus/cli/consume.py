"""``logbus consume``: print records, one a line."""

from __future__ import annotations

import datetime as dt
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Final

import typer

from spark_logbus.cli.options import DEFAULT_ZOOKEEPER, ZooKeeper, connected
from spark_logbus.cli.until_now import Wanted, spans, until_now

if TYPE_CHECKING:
    from spark_logbus.client import Admin, Cluster, FetchedBatch, TopicDescription
    from spark_logbus.model import TopicPartition

_PATIENCE_MS: Final = 4_000  # with a broker that is away, before the others' records are read


def consume(
    topic: str,
    partition: Annotated[int | None, typer.Option(help="Only this partition.")] = None,
    start: Annotated[
        str,
        typer.Option(
            help="earliest, latest, an offset, -1000 (records before the end), or '-10 minutes'."
        ),
    ] = "earliest",
    limit: Annotated[
        int | None, typer.Option("--max", help="Stop after so many records.", min=1)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new records.")] = False,
    metadata: Annotated[
        bool, typer.Option(help="Partition, offset, timestamp and key before each value.")
    ] = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
) -> None:
    """Print the records of a topic: those that are there, or with --follow also new ones."""
    from spark_logbus.client import Admin, ClientConfig
    from spark_logbus.offsets.position import parse_spec

    spec = parse_spec(start, option="--start")
    # What cannot be read is told, and tried again when the rest has been.
    config = ClientConfig() if follow else ClientConfig(retry_deadline_ms=_PATIENCE_MS)
    with connected(zookeeper, config) as cluster:
        admin = Admin(cluster)
        partitions = _partitions(admin, topic, partition)
        wanted = Wanted(topic, _topic_id(admin, topic), tuple(partitions), spec)
        reader = _follow(cluster, admin, wanted) if follow else until_now(cluster, admin, wanted)
        try:
            _print(reader, limit, metadata=metadata)
        except KeyboardInterrupt:
            return
        except BrokenPipeError:
            # Whoever read has enough. Python flushes once more at its exit: to nowhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print(reader: Iterator[FetchedBatch], limit: int | None, *, metadata: bool) -> None:
    out = sys.stdout.buffer
    printed = 0
    for batch in reader:
        lines = _lines(batch, metadata=metadata)
        if limit is not None:
            lines = lines[: limit - printed]
        out.writelines(lines)
        out.flush()
        printed += len(lines)
        if printed == limit:
            return


def _partitions(admin: Admin, topic: str, partition: int | None) -> list[TopicPartition]:
    from spark_logbus.errors import UnknownTopicError
    from spark_logbus.model import TopicPartition

    known = {t.name: t for t in admin.topics()}
    if topic not in known or (partition is not None and partition not in known[topic].partitions):
        wanted = topic if partition is None else f"{topic}-{partition}"
        raise UnknownTopicError(f"The cluster has no {wanted}; it has: {_named(known, topic)}.")
    numbers = known[topic].partitions if partition is None else [partition]
    return [TopicPartition(topic, number) for number in sorted(numbers)]


def _named(known: Mapping[str, TopicDescription], topic: str) -> str:
    """The partitions of the topic if it is there, else all topics."""
    if topic in known:
        return ", ".join(f"{topic}-{number}" for number in sorted(known[topic].partitions))
    return ", ".join(sorted(known)) or "no topics"


def _topic_id(admin: Admin, topic: str) -> str:
    return admin.describe([topic], ends=False)[topic].topic_id


def _follow(cluster: Cluster, admin: Admin, wanted: Wanted) -> Iterator[FetchedBatch]:
    """The consumer warns of brokers that are away, and waits for them."""
    from spark_logbus.client import Consumer, ConsumerConfig
    from spark_logbus.model import AtOffset

    with Consumer(cluster, ConsumerConfig(start=wanted.start)) as consumer:
        consumer.assign(wanted.partitions)
        if isinstance(wanted.start, AtOffset):
            for topic_partition, span in spans(admin, wanted, wanted.partitions).found.items():
                consumer.seek(topic_partition, span.start)
        while True:
            yield from consumer.poll_arrow(1.0)


def _lines(batch: FetchedBatch, *, metadata: bool) -> list[bytes]:
    values = batch.arrow_batch.column("value").to_pylist()
    if not metadata:
        return [(value if value is not None else b"") + b"\n" for value in values]
    names = batch.arrow_batch.schema.names
    keys = batch.arrow_batch.column("key").to_pylist() if "key" in names else [None] * len(values)
    times = batch.arrow_batch.column("timestamp").to_pylist()
    offsets = batch.offsets().to_pylist()
    partition = batch.topic_partition.partition
    lines = []
    for offset, time, key, value in zip(offsets, times, keys, values, strict=True):
        position = f"{partition}\t{offset}\t{_iso(time)}".encode()
        shown = b"-" if key is None else key
        lines.append(b"\t".join((position, shown, value or b"")) + b"\n")
    return lines


def _iso(time: dt.datetime) -> str:
    return time.isoformat(timespec="milliseconds")
