"""Columns of record batches, chosen by a reader and cut out by a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_logbus.client import Admin, Cluster, FirstFetches, RangeReader, mapped_file
from spark_logbus.client.fetch import range_reader
from spark_logbus.client.fetch.values import ValueReader
from spark_logbus.client.schemas.topic import ValueSchemas
from spark_logbus.errors import CorruptRecordBatchError
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.model import Compression, OffsetRange, TopicPartition
from spark_logbus.schemas.registry import SchemaRegistry
from spark_logbus.topic_schemas import Encoding
from spark_logbus.wire.passed_file import PassedFile
from spark_logbus.zookeeper import Session
from tests.builders.typed import FLIGHT, T0, flights, typed_record_batch
from tests.servers.broker import broker_process, connect
from tests.servers.wire import Wire

T = TopicPartition("t", 0)
LARGE = 2_000  # records of a record batch whose columns are worth cutting out
NEWER = json.dumps(
    {
        "type": "record",
        "name": "Flight",
        "fields": [
            {"name": "gate", "type": "string", "default": "?"},
            {"name": "number", "type": "long"},
            {"name": "late_by", "aliases": ["delay"], "type": ["null", "double"], "default": None},
            {"name": "carrier", "type": "string"},
        ],
    }
)


@pytest.fixture
def broker(tmp_path: Path, chroot: str) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path, chroot) as broker:
        yield broker


@pytest.fixture
def cluster(broker: BrokerProcess, chroot: str) -> Iterator[Cluster]:
    with Cluster.from_zookeeper(chroot) as cluster:
        Admin(cluster).create_topic(
            "t", partitions=1, value_schema=FLIGHT, value_encoding="columns"
        )
        with Session(chroot, client_name="tests", expects_cluster=True) as session:
            assert SchemaRegistry(session).register("t-value", NEWER).schema_id == 2
        yield cluster


@pytest.fixture
def wire(broker: BrokerProcess, cluster: Cluster) -> Iterator[Wire]:
    with connect(broker) as wire:
        yield wire


def reader_of(
    fields: Sequence[str] | None, *, columns: Sequence[str] = (), schema: str = FLIGHT
) -> ValueReader:
    schemas = ValueSchemas("t", Encoding.COLUMNS, schema, {1: FLIGHT, 2: NEWER})
    return ValueReader(schemas, fields=fields, columns=columns)


def read(
    cluster: Cluster, values: ValueReader, *, start: int = 0, end: int, fetch_bytes: int = 1 << 20
) -> pa.Table:
    wanted = OffsetRange(T, start, end)
    with RangeReader(cluster, wanted, values=values, fetch_bytes=fetch_bytes) as reader:
        found = [batch.arrow_batch.append_column("offset", batch.offsets()) for batch in reader]
    return pa.Table.from_batches(found)


def expected(rows: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{name: row[name] for name in names} for row in rows]


@pytest.mark.parametrize("compression", Compression)
def test_only_the_chosen_columns_come(
    wire: Wire, cluster: Cluster, compression: Compression
) -> None:
    rows = flights(0, 3 * LARGE)
    for first in range(0, len(rows), LARGE):
        part = rows[first : first + LARGE]
        wire.append("t", 0, typed_record_batch(part, compression=compression))
    table = read(cluster, reader_of(["delay", "carrier"]), end=len(rows))
    assert table.column("value").to_pylist() == expected(rows, "delay", "carrier")
    assert table.column("offset").to_pylist() == list(range(len(rows)))
    assert "timestamp" not in table.column_names


def test_few_bytes_come_for_few_columns(wire: Wire, cluster: Cluster) -> None:
    for first in range(0, 10 * LARGE, LARGE):
        wire.append("t", 0, typed_record_batch(flights(first, LARGE)))
    sent = {}
    for name, values in {
        "all": reader_of(None, columns=["timestamp", "key", "headers"]),
        "number": reader_of(["number"]),
    }.items():
        fetched = []
        with RangeReader(cluster, OffsetRange(T, 0, 10 * LARGE), values=values) as reader:
            while (run := reader._next_run()) is not None:
                fetched.append(run.size)
                reader._drop(len(run))
        sent[name] = sum(fetched)
    assert sent["number"] < sent["all"] / 8


def test_first_fetches_bring_the_chosen_columns_only(wire: Wire, cluster: Cluster) -> None:
    """Fetches as a task does whose ranges share it; small record batches come whole."""
    rows = flights(0, 10 * LARGE + 5)
    for first in range(0, len(rows), LARGE):
        wire.append("t", 0, typed_record_batch(rows[first : first + LARGE]))
    ranges = [OffsetRange(T, 7, 5 * LARGE), OffsetRange(T, 5 * LARGE, len(rows))]
    ids = {"t": Admin(cluster).describe(["t"], ends=False)["t"].topic_id}

    def first_fetches(values: ValueReader | None) -> tuple[int, list[dict[str, Any]]]:
        first = FirstFetches(cluster, ranges, ids, values={"t": values} if values else None)
        size, found = 0, []
        for number, each in enumerate(ranges):
            received = first.take(number)
            assert received is not None
            size += len(received.data)
            wanted = values or reader_of(["number"])
            with RangeReader(cluster, each, received=received, values=wanted) as reader:
                for batch in reader:
                    found += batch.arrow_batch.column("value").to_pylist()
        return size, found

    some, few = first_fetches(reader_of(["number"]))
    whole, all_of_them = first_fetches(None)
    assert few == all_of_them == expected(rows[7:], "number")
    assert some < whole / 8


def test_whole_values_are_mapped_where_files_are_passed(
    wire: Wire, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped: list[int] = []
    original = mapped_file.mapped

    def noted(file: PassedFile, position: int, length: int) -> memoryview:
        mapped.append(length)
        return original(file, position, length)

    monkeypatch.setattr(range_reader, "mapped", noted)
    rows = flights(0, 20 * LARGE)
    for first in range(0, len(rows), LARGE):
        wire.append("t", 0, typed_record_batch(rows[first : first + LARGE]))
    few = read(cluster, reader_of(["number"]), end=len(rows))
    assert few.column("value").to_pylist() == expected(rows, "number")
    assert not mapped
    table = read(cluster, reader_of(None), end=len(rows))
    assert table.column("value").to_pylist() == rows
    assert table.column_names == ["value", "offset"]
    assert mapped


def test_records_of_two_schemas_come_under_one(wire: Wire, cluster: Cluster) -> None:
    old = flights(0, LARGE)
    new = [
        {"gate": "B1", "number": 1 << 40, "late_by": None, "carrier": str(number)}
        for number in range(LARGE)
    ]
    wire.append("t", 0, typed_record_batch(old, schema_id=1))
    wire.append("t", 0, typed_record_batch(new, schema=NEWER, schema_id=2))
    table = read(cluster, reader_of(["gate", "late_by"], schema=NEWER), end=2 * LARGE)
    assert table.column("value").to_pylist() == [
        *({"gate": "?", "late_by": row["delay"]} for row in old),
        *expected(new, "gate", "late_by"),
    ]


def test_small_record_batches_and_tombstones_come_with_the_others(
    wire: Wire, cluster: Cluster
) -> None:
    rows: list[Any] = flights(0, LARGE + 9)
    rows[3] = rows[LARGE + 2] = None
    keys = [b"%d" % number for number in range(len(rows))]
    wire.append("t", 0, typed_record_batch(rows[:LARGE], keys=keys[:LARGE]))
    for number in range(LARGE, len(rows)):
        wire.append("t", 0, typed_record_batch([rows[number]], keys=[keys[number]]))
    values = reader_of(["number"], columns=["key", "timestamp"])
    table = read(cluster, values, start=2, end=len(rows))
    assert table.column("value").to_pylist() == [
        row and {"number": row["number"]} for row in rows[2:]
    ]
    assert table.column("key").to_pylist() == keys[2:]
    assert table.column("timestamp")[0].value == T0 + 2


def test_no_column_at_all_is_still_so_many_records(wire: Wire, cluster: Cluster) -> None:
    wire.append("t", 0, typed_record_batch(flights(0, LARGE)))
    table = read(cluster, reader_of([]), start=5, end=LARGE)
    assert table.num_rows == LARGE - 5


@pytest.mark.parametrize("fetch_bytes", [1, 50_000, 1 << 20])
def test_fetches_of_any_size_bring_all(wire: Wire, cluster: Cluster, fetch_bytes: int) -> None:
    rows = flights(0, 6 * LARGE)
    for first in range(0, len(rows), LARGE):
        wire.append("t", 0, typed_record_batch(rows[first : first + LARGE]))
    table = read(cluster, reader_of(["tail"]), start=7, end=len(rows) - 7, fetch_bytes=fetch_bytes)
    assert table.column("value").to_pylist() == expected(rows[7:-7], "tail")


def test_damage_in_a_chosen_column_is_found_and_in_another_does_not_matter(
    wire: Wire, cluster: Cluster, broker: BrokerProcess
) -> None:
    whole = typed_record_batch(flights(0, LARGE))
    wire.append("t", 0, whole)
    [segment] = (broker.directory / "data" / "t-0").glob("*.log")
    with segment.open("r+b") as file:
        file.seek(len(whole) - 8)  # of the last column
        file.write(b"\x55")
    assert read(cluster, reader_of(["number"]), end=LARGE).num_rows == LARGE
    with pytest.raises(CorruptRecordBatchError, match="column 4 has checksum"):
        read(cluster, reader_of(["tail"]), end=LARGE)
