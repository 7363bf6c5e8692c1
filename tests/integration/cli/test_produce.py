"""``logbus produce`` as a process of its own: order, wrong lines, slow pipes, Ctrl-C."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from spark_logbus.cli.data.chunks import Chunk
from spark_logbus.cli.data.publishing import InputPublisher, OwnPartitions
from spark_logbus.client import Cluster, Producer, ProducerConfig, RangeReader
from spark_logbus.client.producer.partitioner import partition_of
from spark_logbus.errors import BufferExhaustedError, ProducerClosedError
from spark_logbus.model import OffsetRange
from tests.helpers import frozen, wait_until, without_waiting
from tests.servers.broker import broker_process, connect, create_topic
from tests.servers.cluster import Logbus

Row = dict[str, Any]


@contextmanager
def producing(logbus: Logbus, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "spark_logbus.cli", "produce", *words]
    with subprocess.Popen(
        [*command, "-z", logbus.zookeeper],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Its exit code, and what it told."""
    _, told = process.communicate(timeout=120)
    return process.returncode, told.decode()


def stored(logbus: Logbus, topic: str) -> dict[int, list[Row]]:
    return {
        topic_partition.partition: [
            row
            for batch in RangeReader(logbus.cluster, OffsetRange(topic_partition, 0, end))
            for row in batch.arrow_batch.to_pylist()
        ]
        for topic_partition, end in logbus.ends(topic).items()
    }


def values(logbus: Logbus, topic: str) -> list[int]:
    """Values of all partitions, in the order of their numbers."""
    return sorted(int(row["value"]) for rows in stored(logbus, topic).values() for row in rows)


def says(told: str, start: str) -> bool:
    """Compares the beginning of a list."""
    return without_waiting(told).startswith(start)


@pytest.mark.long
def test_many_lines_keep_the_order_of_their_partitions(logbus: Logbus, tmp_path: Path) -> None:
    name, lines = logbus.topic(partitions=3), tmp_path / "lines"
    with lines.open("w") as file:
        for number in range(100_000):  # most have a key; others come in rows, or one by one
            keyless = number % 20_000 < 1_000 or number % 9_999 == 0
            file.write(f"{number}\n" if keyless else f"k{number % 1_000}\t{number}\n")
    with producing(logbus, name, str(lines), "-K", "\\t") as process:
        code, told = ended(process)
    assert (code, says(told, f"Published 100,000 records to {name} in ")) == (0, True), told
    assert values(logbus, name) == list(range(100_000))
    for partition, rows in stored(logbus, name).items():
        numbers = [int(row["value"]) for row in rows]
        assert all(one < next_one for one, next_one in pairwise(numbers))
        keyed = [row for row in rows if row.get("key") is not None]
        assert all(partition_of(row["key"], 3) == partition for row in keyed)
        assert all(row["key"] == b"k%d" % (int(row["value"]) % 1_000) for row in keyed)


@pytest.mark.long
def test_records_that_bring_their_partition_keep_its_order(logbus: Logbus) -> None:
    name = logbus.topic(partitions=3)
    given: list[Row] = [
        {
            "value": None if number % 7 == 0 else str(number),
            "key": f"k{number % 10}",
            "headers": {"number": str(number)},
            "timestamp_us": 1_000 + number,
        }
        | ({"partition": number % 3} if number % 2 else {})
        for number in range(5_000)
    ]
    with producing(logbus, name, "--json") as process:
        _, told = process.communicate("\n".join(map(json.dumps, given)).encode(), timeout=120)
    assert says(told.decode(), "Published 5,000 records"), told
    expected: dict[int, list[Row]] = {0: [], 1: [], 2: []}
    for record in given:
        key = record["key"].encode()
        expected[record.get("partition", partition_of(key, 3))].append(record)
    for partition, rows in stored(logbus, name).items():
        assert [
            {
                "value": row["value"] and row["value"].decode(),
                "key": row["key"].decode(),
                "headers": {header["key"]: header["value"].decode() for header in row["headers"]},
                "timestamp_us": round(row["timestamp"].timestamp() * 1_000_000),
            }
            for row in rows
        ] == [
            {name: one for name, one in record.items() if name != "partition"}
            for record in expected[partition]
        ]


@pytest.mark.parametrize(
    "wrong",
    [b"k7\t" + b"x" * 20_000, b"k" * 6_000 + b"\t" + b"v" * 6_000],
    ids=["value", "key and value"],
)
def test_a_line_that_is_too_long_ends_it_there(logbus: Logbus, wrong: bytes) -> None:
    name = logbus.topic(partitions=3, max_message_bytes="10000")
    lines = [b"k%d\t%d" % (number % 10, number) for number in range(5_000)]
    lines[3_210] = wrong
    with producing(logbus, name, "-K", "\\t") as process:
        _, told = process.communicate(b"\n".join(lines), timeout=120)
    assert process.returncode == 1
    assert says(
        told.decode(),
        "Error: Line 3,211 of standard input cannot be published. A record for topic ",
    ), told
    assert told.endswith(b"Published before it: 3,210 records.\n"), told
    assert values(logbus, name) == list(range(3_210))


@pytest.mark.long
def test_a_partition_that_is_none_ends_it_there(logbus: Logbus) -> None:
    name = logbus.topic(partitions=3)
    lines = [json.dumps({"value": str(n), "partition": n % 3}) for n in range(2_000)]
    lines[1_500] = json.dumps({"value": "1500", "partition": 3})
    with producing(logbus, name, "--json") as process:
        _, told = process.communicate("\n".join(lines).encode(), timeout=120)
    assert process.returncode == 1
    assert b"Line 1,501 of standard input cannot be published" in told
    assert told.endswith(b"Published before it: 1,500 records.\n"), told
    assert values(logbus, name) == list(range(1_500))


def test_a_slow_pipe_is_published_line_by_line(logbus: Logbus) -> None:
    name = logbus.topic()
    with producing(logbus, name) as process:
        assert process.stdin is not None
        for number in range(5):
            # The rest of the next line is not waited for.
            process.stdin.write(b"%d\n" % number + b"0")
            wait_until(lambda: len(values(logbus, name)) == number + 1, message="the record")  # noqa: B023
        code, told = ended(process)
    assert (code, says(told, "Published 6 records")) == (0, True), told
    assert values(logbus, name) == [0, 0, 1, 2, 3, 4]


@pytest.mark.long
def test_ctrl_c_tells_how_many_of_many_were_published(logbus: Logbus) -> None:
    name = logbus.topic(partitions=3)
    with producing(logbus, name) as process:
        pipe = process.stdin
        assert pipe is not None

        def write() -> None:
            with suppress(BrokenPipeError):  # it has ended
                for start in count(step=1_000):
                    pipe.write(b"".join(b"%d\n" % n for n in range(start, start + 1_000)))

        writer = threading.Thread(target=write)
        writer.start()
        try:
            wait_until(lambda: sum(logbus.ends(name).values()) > 10_000, message="records")
            process.send_signal(signal.SIGINT)
            code = process.wait(60)
        finally:
            process.kill()
            writer.join(60)
        assert process.stderr is not None
        told = without_waiting(process.stderr.read().decode())
    assert code == 130
    found = re.fullmatch(rf"Interrupted: published ([\d,]+) records to {name} in .* s\.\n", told)
    assert found, told
    assert values(logbus, name) == list(range(int(found[1].replace(",", ""))))


def test_what_was_published_is_known_when_a_broker_stands_still(
    tmp_path: Path, chroot: str
) -> None:
    """Does what Ctrl-C does while a producer waits for room, or when it has waited for long
    enough."""
    config = ProducerConfig(batch_bytes=1_000, buffer_bytes=1_000, max_block_ms=100)
    chunk = Chunk(values=[b"value"] * 1_000, source="f", first_line=1)
    with (
        broker_process(tmp_path, chroot) as broker,
        connect(broker) as wire,
        Cluster.from_zookeeper(chroot) as cluster,
        Producer(cluster, config) as producer,
    ):
        create_topic(wire, "t")
        cluster.topic("t", cluster.retry_deadline())  # so that the producer need not ask
        publisher = InputPublisher(producer, "t", OwnPartitions())
        publisher.publish(chunk)
        wait_until(lambda: publisher.acknowledged == 1_000, message="acknowledgements")
        with frozen(broker.pid):
            publisher.publish(chunk)  # there is room
            with pytest.raises(BufferExhaustedError):
                publisher.publish(chunk)
            publisher.finish(0.1)
    assert publisher.told == "1,000 of 3,000 records were acknowledged by t"
    with pytest.raises(
        ProducerClosedError, match=r"1,000 of 3,000 .* Of the others it is not known"
    ):
        publisher.check(interrupted=True)
