"""Tables of a lake as other programs read them: each record of the topic, with all that it had.

What is expected is worked out from what was produced, so no reader is compared with another one.
DuckDB's own readers of the two formats are extensions that it downloads. So DuckDB reads Delta
through Arrow's dataset of the table, whose partition columns stand in the log alone, and Iceberg by
the list of the table's files, which hold all columns.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable as DeltaLog
from deltalake import QueryBuilder
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from avro_columns.values.rows import columns_of
from spark_logbus.client import Producer
from spark_logbus.load import LayoutChoice, LoadConfig, Period, run_load
from spark_logbus.load.tables import DeltaTable, IcebergTable, TableOfLake
from tests.integration.spark.test_typed import topic_of
from tests.servers.cluster import Logbus

Rows = list[dict[str, Any]]

PARTITIONS: Final = (0, 1)
HALF: Final = 24  # of a partition's records, which come with two loads

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MOMENTS_US: Final = (
    0, -1, 1, -1_000_001, 1_700_000_000_123_456, -2_145_916_799_999_999, -14_830_000_000_000_001,
    253_402_300_799_999_000,
)  # fmt: skip
KEYS: Final = (b"", b"\x00\xff\xfe", None, b"plain", "schl\u00fcssel".encode())
HEADERS: Final[tuple[list[tuple[str, bytes | None]], ...]] = (
    [],
    [("trace", b"\x00\x80"), ("trace", b"again"), ("empty", b""), ("none", None)],
    [("\u00fc", "\u20ac".encode())],
)
NULL_DIRECTORY: Final = "__HIVE_DEFAULT_PARTITION__"
#: Names of partitions that a path, a URL or a table's log may mistake for something else.
ODD_NAMES: Final = (
    "plain", None, "a b", "a/b", "../up", "50%", "%2F", "a=b", "a:b", "a?b#c", "\u00fc\u20ac",
    "\U0001f600", "'\"\\", "line\nbreak", " padded ", NULL_DIRECTORY, "null",
    "a+b&c", ".", "x" * 200,
)  # fmt: skip


def field(name: str, kind: object) -> dict[str, object]:
    return {"name": name, "type": ["null", kind], "default": None}


def logical(kind: str, name: str, **more: object) -> dict[str, object]:
    return {"type": kind, "logicalType": name, **more}


_PART: Final = {
    "type": "record",
    "name": "Part",
    "fields": [field("x", "int"), field("names", {"type": "array", "items": ["null", "string"]})],
}
TYPES: Final = json.dumps(
    {
        "type": "record",
        "name": "Everything",
        "fields": [
            {"name": "number", "type": "long"},
            field("flag", "boolean"),
            field("small", "int"),
            field("ratio", "float"),
            field("exact", "double"),
            field("text", "string"),
            field("data", "bytes"),
            field("code", {"type": "fixed", "name": "Code", "size": 4}),
            field("label", {"type": "enum", "name": "Label", "symbols": ["NEW", "USED"]}),
            field("day", logical("int", "date")),
            field("at", logical("long", "timestamp-micros")),
            field("at_ms", logical("long", "timestamp-millis")),
            field("local", logical("long", "local-timestamp-micros")),
            field("price", logical("bytes", "decimal", precision=9, scale=2)),
            field("mass", logical("bytes", "decimal", precision=38, scale=9)),
            field("uuid", logical("string", "uuid")),
            field("some", {"type": "array", "items": ["null", "long"]}),
            field("rates", {"type": "map", "values": ["null", "double"]}),
            field("part", _PART),
            field("parts", {"type": "array", "items": ["null", "Part"]}),
            {"name": "either", "type": ["null", "long", "string"], "default": None},
            field("Upper_Case", "string"),
        ],
    }
)


def moment(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


def typed_row(number: int) -> dict[str, Any]:
    """Values as producers give them; every third row has null wherever it may."""
    if number % 3 == 2:
        return {"number": number}
    time = moment(MOMENTS_US[number % len(MOMENTS_US)])
    part = {"x": -number, "names": ["a", None, "\U0001f600"][: number % 4]}
    return {
        "number": (1 << 63) - 1 - number if number % 2 else number - (1 << 63),
        "flag": number % 2 == 0,
        "small": -(1 << 31) + number,
        "ratio": (0.5, math.inf, math.nan, -0.0)[number % 4],
        "exact": (1e308, -math.inf, 5e-324, math.nan, 0.1)[number % 5],
        "text": ("", "\u00e9\U0001f600\n\t", "x" * 5_000)[number % 3],
        "data": (b"", bytes(range(256)))[number % 2],
        "code": b"\x00\x01\xfe\xff",
        "label": ("NEW", "USED")[number % 2],
        "day": (date(1, 1, 1), date(1582, 10, 5), date(1969, 12, 31), date(9999, 12, 31))[
            number % 4
        ],
        "at": time,
        "at_ms": time.replace(microsecond=time.microsecond // 1000 * 1000),
        "local": time.replace(tzinfo=None),
        "price": Decimal(number - 50) / 4,
        "mass": (Decimal(10) ** 28 - 1) * (-1) ** number + Decimal(number).scaleb(-9),
        "uuid": f"6ba7b810-9dad-11d1-80b4-{number:012x}",
        "some": [number, None, -number][: number % 4],
        "rates": {f"k{each}": each / 3 for each in range(number % 3)} | {"none": None},
        "part": part,
        "parts": [part, None],
        "either": number if number % 2 else "text",
        "Upper_Case": "kept",
    }


def json_row(number: int) -> dict[str, Any]:
    kind = ("", *ODD_NAMES)[number % (len(ODD_NAMES) + 1)]
    return {
        "kind": kind,
        "n": number,
        "flag": number % 2 == 0,
        "at": moment(MOMENTS_US[number % 4]),
        "day": date(1970, 1, 1) - timedelta(days=number),
        "amount": Decimal(number).scaleb(-4) - 10**12,
        "nested": None
        if number % 4 == 3
        else {
            "list": [{"x": number, "y": None}, {"x": None, "y": "\u00fc"}],
            "more": {"a": number, "b": None},
        },
    }


JSON_SCHEMA: Final = (
    "kind string, n int, flag boolean, at timestamp, day date, amount decimal(20, 4), "
    "nested struct<list: array<struct<x: int, y: string>>, more: map<string, bigint>>"
)


def json_text(row: Mapping[str, Any]) -> bytes:
    """A value of the topic; every eleventh is no JSON."""
    if row["n"] % 11 == 10:
        return b'{"kind": '
    exact = {**row, "at": row["at"].isoformat(), "day": row["day"].isoformat()}
    # Decimals would lose digits as floats.
    text = json.dumps({**exact, "amount": 0}).replace('"amount": 0', f'"amount": {row["amount"]}')
    return text.encode()


def expected_json(row: Mapping[str, Any]) -> dict[str, Any]:
    value = json_text(row)
    if row["n"] % 11 == 10:
        return {**dict.fromkeys(row), "value": value, "malformed_value": value}
    return {**row, "value": value, "malformed_value": None}


def expected_typed(row: Mapping[str, Any]) -> dict[str, Any]:
    names = [each["name"] for each in json.loads(TYPES)["fields"]]
    either = row.get("either")
    whole = None if either is None else {
        "member0": either if isinstance(either, int) else None,
        "member1": either if isinstance(either, str) else None,
    }  # fmt: skip
    return {**{name: row.get(name) for name in names}, "either": whole}


def metadata(partition: int, number: int) -> dict[str, Any]:
    """Columns that a record has beside its value."""
    place = number + partition
    headers = HEADERS[place % len(HEADERS)]
    return {
        "key": KEYS[place % len(KEYS)],
        "timestamp": moment(MOMENTS_US[place % len(MOMENTS_US)]),
        "headers": [{"key": key, "value": value} for key, value in headers],
    }


@dataclass(frozen=True)
class Loads:
    """Loads of one topic into one table, and what the topic has."""

    spark: SparkSession
    logbus: Logbus
    table: TableOfLake
    topic: str

    def produce(self, numbers: range, values: pa.Array) -> None:
        """Sends records with those values to both partitions."""
        header = pa.struct([("key", pa.string()), ("value", pa.binary())])
        kinds = {
            "key": pa.binary(),
            "timestamp": pa.timestamp("us", "UTC"),
            "headers": pa.list_(header),
        }
        with Producer(self.logbus.cluster) as producer:
            for partition in PARTITIONS:
                rows = [metadata(partition, number) for number in numbers]
                columns = {
                    name: pa.array([row[name] for row in rows], kind)
                    for name, kind in kinds.items()
                }
                data = pa.table({**columns, "value": values})
                for future in producer.send_arrow(self.topic, data, partition=partition):
                    future.result(60)

    def load(self, **more: Any) -> None:
        loaded = run_load(
            self.spark, LoadConfig(self.topic, self.table, self.logbus.zookeeper, **more)
        )
        assert loaded.commit is not None
        assert loaded.commit.records == len(PARTITIONS) * HALF

    def expected(self, values: Rows) -> Rows:
        return [
            {"partition": partition, "offset": number, **metadata(partition, number), **value}
            for partition in PARTITIONS
            for number, value in enumerate(values)
        ]


# -- readers ----------------------------------------------------------------------------------


def by_delta_rs(table: DeltaTable) -> pa.Table:
    """Reads with delta-rs's own query engine, DataFusion."""
    reader = QueryBuilder().register("t", DeltaLog(table.uri))
    return pa.table(reader.execute("SELECT * FROM t"))


def by_arrow(table: DeltaTable) -> pa.Table:
    return DeltaLog(table.uri).to_pyarrow_table()


def by_duckdb_of_delta(table: DeltaTable) -> pa.Table:
    dataset = DeltaLog(table.uri).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("t", dataset)
        return connection.sql("SELECT * FROM t").to_arrow_table()


def by_polars_of_delta(table: DeltaTable) -> pa.Table:
    """Reads with Polars, which takes partitions from the names of directories, where this one text
    stands for null: ``misread`` knows."""
    return pl.read_delta(table.uri).to_arrow()


def opened(table: IcebergTable) -> Any:
    return load_catalog(table.catalog, **table.properties).load_table(table.identifier)


def by_pyiceberg(table: IcebergTable) -> pa.Table:
    """Reads with pyiceberg, which takes null for an empty list where the list is of structs
    (apache/iceberg-python#3833): ``misread`` knows."""
    return opened(table).scan().to_arrow()


def by_polars_of_iceberg(table: IcebergTable) -> pa.Table:
    frame = pl.scan_iceberg(opened(table), reader_override="native").collect()
    assert isinstance(frame, pl.DataFrame)
    return frame.to_arrow()


def by_duckdb_of_iceberg(table: IcebergTable) -> pa.Table:
    tasks = opened(table).scan().plan_files()
    files = [task.file.file_path.removeprefix("file://") for task in tasks]
    with duckdb.connect() as connection:
        # All that a file needs is in it: what its directories are called is for people.
        read = connection.read_parquet(files, hive_partitioning=False, union_by_name=True)
        return read.to_arrow_table()


DELTA_READERS: Final = (by_delta_rs, by_arrow, by_duckdb_of_delta, by_polars_of_delta)
ICEBERG_READERS: Final = (by_pyiceberg, by_polars_of_iceberg, by_duckdb_of_iceberg)


def readers_of(table: TableOfLake) -> list[Callable[[Any], pa.Table]]:
    return [*(DELTA_READERS if isinstance(table, DeltaTable) else ICEBERG_READERS)]


def plain(value: Any) -> Any:
    """A value as all readers and the expected rows have it."""
    match value:
        case datetime():
            return (value.replace(tzinfo=value.tzinfo or UTC) - EPOCH) // timedelta(microseconds=1)
        case float() if math.isnan(value):
            return "not a number"
        case dict():
            return {name: plain(each) for name, each in value.items()}
        case tuple():  # an entry of a map
            return {"key": plain(value[0]), "value": plain(value[1])}
        case list():
            return [plain(each) for each in value]
    return value


def rows_read(table: pa.Table) -> Rows:
    rows = [plain(row) for row in table.to_pylist()]
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def maps_as_entries(row: dict[str, Any]) -> dict[str, Any]:
    """A row that is expected, with maps as readers give them."""
    found = {**row}
    for name in ("rates",):
        if row.get(name) is not None:
            found[name] = [*row[name].items()]
    if row.get("nested") is not None:
        found["nested"] = {**row["nested"], "more": [*row["nested"]["more"].items()]}
    return found


def misread(reader: Callable[[Any], pa.Table], row: Mapping[str, Any]) -> dict[str, Any]:
    """Values that a reader has for those of a row, by a fault of its own."""
    if reader is by_pyiceberg and row.get("parts", []) is None:
        return {"parts": []}
    if reader is by_polars_of_delta and row.get("kind") == NULL_DIRECTORY:
        return {"kind": None}
    return {}


def check(table: TableOfLake, expected: Rows) -> None:
    wanted = [plain(maps_as_entries(row)) for row in expected]
    for reader in readers_of(table):
        read = rows_read(reader(table))
        assert len(read) == len(wanted), reader.__name__
        for own, row in zip(read, wanted, strict=True):
            assert own == {**row, **misread(reader, row)}, reader.__name__


@pytest.fixture(autouse=True)
def own_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has Polars list an Iceberg table's files with pyiceberg: its own planner is one more package,
    which it would miss by a warning. It reads the files itself."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")


# -- tests ------------------------------------------------------------------------------------


@pytest.fixture(params=["delta", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> TableOfLake:
    if request.param == "delta":
        return DeltaTable(str(tmp_path / "lake" / "everything"))
    (tmp_path / "lake").mkdir()
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path / 'catalogue.db'}",
        "warehouse": f"file://{tmp_path / 'lake'}",
    }
    return IcebergTable("own", "shop.everything", properties)


def test_columns_of_all_types(spark: SparkSession, logbus: Logbus, table: TableOfLake) -> None:
    topic = topic_of(logbus, "columns", schema=TYPES, partitions=len(PARTITIONS))
    loads = Loads(spark, logbus, table, topic)
    rows = [typed_row(number) for number in range(2 * HALF)]
    for start in (0, HALF):
        loads.produce(range(start, start + HALF), columns_of(rows[start : start + HALF], TYPES))
        loads.load()
    expected = loads.expected([expected_typed(row) for row in rows])
    if isinstance(table, DeltaTable):
        expected = [{**row, "date": row["timestamp"].date()} for row in expected]
    check(table, expected)


def test_json_and_partitions_with_odd_names(
    spark: SparkSession, logbus: Logbus, table: TableOfLake
) -> None:
    loads = Loads(spark, logbus, table, logbus.topic(partitions=len(PARTITIONS)))
    rows = [json_row(number) for number in range(2 * HALF)]
    layout = LayoutChoice(period=Period.MONTH, columns=("kind",))
    for start in (0, HALF):
        values = pa.array([json_text(row) for row in rows[start : start + HALF]], pa.binary())
        loads.produce(range(start, start + HALF), values)
        loads.load(json_schema=JSON_SCHEMA, layout=layout)
    expected = loads.expected([expected_json(row) for row in rows])
    if isinstance(table, DeltaTable):
        # Delta has no partition of an empty text: its protocol takes that for null.
        expected = [
            {**row, "month": f"{row['timestamp']:%Y-%m}", "kind": row["kind"] or None}
            for row in expected
        ]
    check(table, expected)
