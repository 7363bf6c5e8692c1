"""A datetime without a time zone is no moment: it is refused wherever the schema has one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Any

import pyarrow as pa
import pytest

from avro_columns.errors import ValueMismatchError
from avro_columns.values.json_values import value_of_json
from avro_columns.values.resolved_tree import parse
from avro_columns.values.row_check import RowCheck
from avro_columns.values.rows import columns_of
from spark_logbus.cli.data.record_input import parse_time
from spark_logbus.client import Cluster, Producer, ProducerConfig
from spark_logbus.client.schemas.topic import WriterSchema
from spark_logbus.errors import ConfigError, InvalidRequestError
from spark_logbus.topic_schemas import Encoding
from tests.builders.arrow_batches import T0
from tests.fakes.broker import FakeCluster

NAIVE = datetime.fromisoformat("2024-01-02T03:04:05")
CHINA = timezone(timedelta(hours=8))
UNITS = ("millis", "micros", "nanos")


class Nowhere(tzinfo):
    """A zone that says of no time how far it is from UTC, which Python calls naive, too."""

    def utcoffset(self, at: datetime | None, /) -> timedelta | None:
        return None

    def dst(self, at: datetime | None, /) -> timedelta | None:
        return None

    def tzname(self, at: datetime | None, /) -> str | None:
        return None


def moment(unit: str = "micros") -> dict[str, str]:
    return {"type": "long", "logicalType": f"timestamp-{unit}"}


def record(kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [{"name": "at", "type": kind}]}


LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
DAY = {"type": "int", "logicalType": "date"}
#: A schema, a value that has a naive datetime somewhere, the same with a zone, the place.
NESTED: dict[str, tuple[Any, Callable[[datetime], Any], str]] = {
    "value": (moment(), lambda at: at, "the value itself"),
    "field": (record(moment()), lambda at: {"at": at}, "at"),
    "nullable": (record(["null", moment()]), lambda at: {"at": at}, "at"),
    "union": (record(["null", moment(), "string"]), lambda at: {"at": at}, "at"),
    "or a date": (record([DAY, moment()]), lambda at: {"at": at}, "at"),
    "named": (record(["string", moment()]), lambda at: {"at": ("long", at)}, "at"),
    "array": (record({"type": "array", "items": moment()}), lambda at: {"at": [at]}, "at"),
    "map": (record({"type": "map", "values": moment()}), lambda at: {"at": {"k": at}}, "at"),
    "record": (
        record({"type": "record", "name": "in", "fields": [{"name": "x", "type": moment()}]}),
        lambda at: {"at": {"x": at}},
        "at.x",
    ),
}
REMEDY = r"A datetime without a time zone is no moment; give it one"


@pytest.mark.parametrize("naive", [NAIVE, NAIVE.replace(tzinfo=Nowhere())], ids=["none", "no"])
@pytest.mark.parametrize(("schema", "made", "place"), NESTED.values(), ids=NESTED)
def test_it_is_refused_with_its_field_and_the_remedy(
    schema: Any, made: Callable[[datetime], Any], place: str, naive: datetime
) -> None:
    check = RowCheck(schema)
    for take in (
        check.take,
        lambda value: columns_of([made(NAIVE.astimezone(UTC)), value], schema),
    ):
        with pytest.raises(ValueMismatchError, match=f"{place}.*{REMEDY}"):
            take(made(naive))
        take(made(NAIVE.replace(tzinfo=CHINA)))


@pytest.mark.parametrize("unit", UNITS)
def test_the_moment_is_that_of_its_zone(unit: str) -> None:
    rows = [NAIVE.replace(tzinfo=CHINA), NAIVE.replace(tzinfo=UTC)]
    [first, second] = columns_of(rows, moment(unit)).cast(pa.int64()).to_pylist()
    assert second - first == 8 * 3600 * {"nanos": 10**9}.get(unit, 10**6)
    with pytest.raises(ValueMismatchError, match=REMEDY):
        columns_of([*rows, NAIVE], moment(unit))


def test_where_the_schema_has_no_moment_it_is_taken() -> None:
    assert RowCheck([LOCAL, DAY]).take(NAIVE) == (0, NAIVE)
    assert RowCheck([moment(), DAY]).take(date(2024, 1, 2)) == (1, date(2024, 1, 2))
    assert columns_of([NAIVE], LOCAL).to_pylist() == [NAIVE]
    with pytest.raises(ValueMismatchError):
        columns_of([NAIVE, NAIVE.replace(tzinfo=UTC)], LOCAL)


@dataclass
class Event:
    at: datetime


SENDS: dict[str, Callable[[Producer, datetime], object]] = {
    "send": lambda producer, at: producer.send("t", {"at": at}),
    "send with a key": lambda producer, at: producer.send("t", {"at": at}, key=b"k"),
    "a dataclass": lambda producer, at: producer.send("t", Event(at)),
    "send_many": lambda producer, at: producer.send_many("t", [{"at": at}]),
    "many dataclasses": lambda producer, at: producer.send_many("t", [None, Event(at)]),
    "send_arrow": lambda producer, at: producer.send_arrow(
        "t", pa.table({"at": pa.array([at], pa.timestamp("us", "UTC" if at.tzinfo else None))})
    ),
    "a struct": lambda producer, at: producer.send_arrow(
        "t",
        pa.table(
            {
                "value": pa.array(
                    [{"at": at}],
                    pa.struct({"at": pa.timestamp("us", "UTC" if at.tzinfo else None)}),
                )
            }
        ),
    ),
    "the record's time": lambda producer, at: producer.send(
        "t", {"at": NAIVE.astimezone(UTC)}, timestamp_us=at
    ),
    "the records' times": lambda producer, at: producer.send_many(
        "t", [{"at": NAIVE.astimezone(UTC)}], timestamps_us=[at]
    ),
}


@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
@pytest.mark.parametrize("encoding", Encoding)
def test_every_door_refuses_it(
    fake: FakeCluster,
    cluster: Cluster,
    encoding: Encoding,
    send: Callable[[Producer, datetime], object],
) -> None:
    fake.create("t", config={"value.encoding": encoding.value})
    schema = WriterSchema(encoding, 1, json.dumps(record(moment())))
    with Producer(cluster, ProducerConfig(linger_ms=0), schemas={"t": schema}) as producer:
        with pytest.raises(InvalidRequestError, match=r"time zone|Give it the zone"):
            send(producer, NAIVE)
        send(producer, NAIVE.replace(tzinfo=UTC))
    assert len(fake.partition(T0).batches) == 1


@pytest.mark.parametrize("unit", UNITS)
def test_text_of_the_command_line_needs_a_zone(unit: str) -> None:
    node = parse(moment(unit))
    for text in ("2024-01-02T03:04:05", "2024-01-02T03:04:05.123456789", "2024-01-02"):
        with pytest.raises(ValueMismatchError, match=r"write its zone behind it"):
            value_of_json(node, text)
    value_of_json(node, "2024-01-02T03:04:05.123456Z")
    value_of_json(node, "2024-01-02T03:04:05.123456789+08:00")
    value_of_json(parse(LOCAL), "2024-01-02T03:04:05")
    with pytest.raises(ConfigError, match="write its zone behind it"):
        parse_time("2024-01-02T03:04:05")
    assert parse_time("2024-01-02T08:00+08:00") == parse_time("2024-01-02T00:00Z")
