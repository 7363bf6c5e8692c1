"""``logbus consume``: print records, one a line."""

from __future__ import annotations

import datetime as dt
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from spark_logbus.cli.options import DEFAULT_ZOOKEEPER, ZooKeeper, connected

if TYPE_CHECKING:
    from spark_logbus.client import Admin, Cluster, FetchedBatch, TopicDescription
    from spark_logbus.model import OffsetSpec, TopicPartition


def consume(
    topic: str,
    partition: Annotated[int | None, typer.Option(help="Only this partition.")] = None,
    start: Annotated[str, typer.Option(help="earliest, latest, or an offset.")] = "earliest",
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
    from spark_logbus.client import Admin

    with connected(zookeeper) as cluster:
        admin = Admin(cluster)
        partitions = _partitions(admin, topic, partition)
        starts = _positions(admin, partitions, start)
        reader = _follow(cluster, starts) if follow else _until_now(cluster, admin, starts)
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


def _positions(
    admin: Admin, partitions: list[TopicPartition], start: str
) -> dict[TopicPartition, int]:
    from spark_logbus.errors import InvalidRequestError
    from spark_logbus.model import Earliest, Latest

    if start.isdecimal():
        return _from_offset(admin, partitions, int(start))
    kinds: dict[str, OffsetSpec] = {"earliest": Earliest(), "latest": Latest()}
    if start not in kinds:
        raise InvalidRequestError(f"--start is {start!r}; use earliest, latest or an offset.")
    found = admin.list_offsets(dict.fromkeys(partitions, kinds[start]))
    return {tp: offset or 0 for tp, offset in found.items()}


def _from_offset(
    admin: Admin, partitions: list[TopicPartition], offset: int
) -> dict[TopicPartition, int]:
    """That offset in all partitions that have it; in those that end before it, their end."""
    from spark_logbus.errors import OffsetOutOfRangeError
    from spark_logbus.model import Earliest, Latest

    firsts = admin.list_offsets(dict.fromkeys(partitions, Earliest()))
    ends = {
        tp: end or 0 for tp, end in admin.list_offsets(dict.fromkeys(partitions, Latest())).items()
    }
    if offset > max(ends.values()):
        raise OffsetOutOfRangeError(
            f"--start is {offset:,}, but the last offset is {max(ends.values()) - 1:,} "
            f"({_shown(ends)}). Use a smaller one, or latest."
        )
    early = {tp: first for tp, first in firsts.items() if first is not None and offset < first}
    if early:
        raise OffsetOutOfRangeError(
            f"--start is {offset:,}, but retention deleted what was before {_shown(early)}. Use a "
            "larger one, or earliest."
        )
    return {tp: min(offset, end) for tp, end in ends.items()}


def _shown(offsets: Mapping[TopicPartition, int]) -> str:
    return ", ".join(f"{tp}: {offset:,}" for tp, offset in sorted(offsets.items()))


def _until_now(
    cluster: Cluster, admin: Admin, starts: dict[TopicPartition, int]
) -> Iterator[FetchedBatch]:
    from spark_logbus.client import RangeReader
    from spark_logbus.model import Latest, OffsetRange

    ends = admin.list_offsets(dict.fromkeys(starts, Latest()))
    for tp, start in starts.items():
        yield from RangeReader(cluster, OffsetRange(tp, start, ends[tp] or 0))


def _follow(cluster: Cluster, starts: dict[TopicPartition, int]) -> Iterator[FetchedBatch]:
    from spark_logbus.client import Consumer, ConsumerConfig

    with Consumer(cluster, ConsumerConfig()) as consumer:
        consumer.assign(list(starts))
        for tp, start in starts.items():
            consumer.seek(tp, start)
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
