"""``logbus bench``: records sent to a cluster and read back, with rates and latencies."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from spark_logbus.cli.completion import topic_names
from spark_logbus.cli.options import (
    DEFAULT_ZOOKEEPER,
    AcksName,
    AsJson,
    CompressionName,
    ZooKeeper,
    connected,
    producer_config,
)
from spark_logbus.cli.output import NUMBER, Column, Kind, Table, console
from spark_logbus.plurals import plural

if TYPE_CHECKING:
    from spark_logbus.client import Admin, Cluster, ProducerConfig
    from spark_logbus.model import TopicPartition

_SAMPLES: Final = 10_000  # of latency: to note each record's would slow the others
_DECIMAL: Final = Kind("{:,.2f}".format, "{:.2f}".format)


def bench(
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            "-t",
            help="Send to this one, and leave the records there; default: one of its own, which is "
            "deleted at the end.",
            autocompletion=topic_names,
        ),
    ] = None,
    records: Annotated[int, typer.Option("--records", "-n", help="How many.", min=1)] = 100_000,
    size: Annotated[
        int, typer.Option("--size", "-s", help="Bytes of each value.", min=0, max=1 << 20)
    ] = 200,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", help="Of a topic of its own.", min=1)
    ] = 1,
    compression: CompressionName = "none",
    acks: AcksName = None,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    as_json: AsJson = False,
) -> None:
    """Send records of random bytes as fast as it goes, read them back, and tell the rates.

    Latencies are in milliseconds from the send of a record to its acknowledgement. Exit code 1
    when fewer records can be read than were sent.

    \b
    Example:
      logbus bench -n 1000000 -s 500 -p 4
    """
    from spark_logbus.client import Admin

    config = producer_config(acks, compression)
    with connected(zookeeper) as cluster:
        admin = Admin(cluster)
        with _topic(admin, topic, partitions) as name:
            starts = _ends(admin, name)
            sent = _send(cluster, name, records, size, config)
            read = _read(cluster, starts, _ends(admin, name))
    rows = Table(
        Column("step"),
        Column("records", NUMBER),
        Column("seconds", _DECIMAL),
        Column("records_per_s", Kind("{:,.0f}".format, "{:.0f}".format), "records/s"),
        Column("mb_per_s", _DECIMAL, "MB/s"),
        Column("p50_ms", _DECIMAL),
        Column("p99_ms", _DECIMAL),
    )
    for row in (sent, read):
        rate = row["records"] / max(row["seconds"], 1e-9)
        rows.add({**row, "records_per_s": rate, "mb_per_s": rate * size / 1e6})
    rows.print(as_json=as_json)
    if read["records"] < records:
        console(stderr=True).print(
            f"Of {plural(records, 'record')} that were sent, {read['records']:,} can be read."
        )
        raise typer.Exit(1)


@contextmanager
def _topic(admin: Admin, given: str | None, partitions: int) -> Iterator[str]:
    if given is not None:
        admin.describe([given], ends=False)
        yield given
        return
    name = f"logbus-bench-{uuid.uuid4().hex[:12]}"
    admin.create_topic(name, partitions=partitions)
    try:
        yield name
    finally:
        admin.delete_topic(name)


def _ends(admin: Admin, name: str) -> dict[TopicPartition, int]:
    from spark_logbus.model import Latest, TopicPartition

    parts = admin.describe([name], ends=False)[name].partitions
    found = admin.list_offsets({TopicPartition(name, number): Latest() for number in parts})
    return {topic_partition: end or 0 for topic_partition, end in found.items()}


def _send(
    cluster: Cluster, name: str, records: int, size: int, config: ProducerConfig
) -> dict[str, Any]:
    from spark_logbus.client import Producer

    value = os.urandom(size)
    every = max(1, records // _SAMPLES)
    latencies: list[float] = []
    sampled = []
    started = time.monotonic()
    with Producer(cluster, config) as producer:
        for number in range(records):
            at = time.monotonic() if number % every == 0 else 0.0
            future = producer.send(name, value)
            if at:
                future.add_done_callback(
                    lambda _, at=at: latencies.append(time.monotonic() - at)  # type: ignore[misc]
                )
                sampled.append(future)
        producer.flush()
        seconds = time.monotonic() - started
    for future in sampled:
        if (error := future.exception()) is not None:
            raise error
    latencies.sort()
    return {
        "step": "send",
        "records": records,
        "seconds": seconds,
        "p50_ms": latencies[len(latencies) // 2] * 1000,
        "p99_ms": latencies[len(latencies) * 99 // 100] * 1000,
    }


def _read(
    cluster: Cluster, starts: dict[TopicPartition, int], ends: dict[TopicPartition, int]
) -> dict[str, Any]:
    from spark_logbus.client import RangeReader
    from spark_logbus.model import OffsetRange

    started = time.monotonic()
    count = 0
    for topic_partition, end in ends.items():
        start = starts.get(topic_partition, 0)
        if start < end:
            with RangeReader(cluster, OffsetRange(topic_partition, start, end)) as reader:
                count += sum(fetched.arrow_batch.num_rows for fetched in reader)
    return {"step": "read", "records": count, "seconds": time.monotonic() - started}
