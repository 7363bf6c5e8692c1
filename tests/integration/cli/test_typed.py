"""Typed records on the command line, as a user publishes and prints them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from avro_columns.values.rows import columns_of
from spark_logbus.client import Cluster, Consumer, Producer
from tests.builders.typed import FLIGHT, UNIONS, flights, union_rows
from tests.servers.cluster import Logbus
from tests.servers.command import Command

ODDS = json.dumps(
    {
        "type": "record",
        "name": "Odds",
        "fields": [
            {"name": "raw", "type": "bytes"},
            {"name": "price", "type": {
                "type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "ratio", "type": "double"},
            {"name": "tags", "type": {"type": "map", "values": ["null", "string"]}},
            {"name": "some", "type": ["null", "string", "long"], "default": None},
        ],
    }
)  # fmt: skip


@pytest.fixture(params=["columns", "avro"])
def encoding(request: pytest.FixtureRequest) -> str:
    encoding: str = request.param
    return encoding


def created(logbus: Logbus, encoding: str, schema: str = FLIGHT) -> str:
    name = logbus.topic_name()
    logbus.admin.create_topic(name, partitions=1, value_schema=schema, value_encoding=encoding)
    return name


def lines(*objects: object) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in objects)


def test_objects_there_and_back(command: Command, logbus: Logbus, encoding: str) -> None:
    topic = created(logbus, encoding)
    published = command("produce", topic, stdin=lines(*flights(0, 300)))
    assert published.code == 0, published
    assert "Published 300 records" in published.err
    printed = command("consume", topic)
    assert [json.loads(line) for line in printed.out.splitlines()] == flights(0, 300)
    printed = command("consume", topic, "-n", "1", "-f", "%o %S %s")
    text = json.dumps(flights(0, 1)[0])
    assert printed.out == f"0 {len(text)} {text}"


def test_what_consume_prints_as_json_can_be_published(
    command: Command, logbus: Logbus, encoding: str
) -> None:
    source, target = (created(logbus, encoding, ODDS) for _ in range(2))
    one = {"value": {
        "raw": {"base64": "/wA="}, "price": "12.50", "at": "2026-01-31T12:00:00.000001+00:00",
        "day": "2026-01-31", "ratio": "NaN", "tags": {"a": None, "b": "c"}, "some": None,
    }, "key": "k", "headers": [["h", "1"]]}  # fmt: skip
    assert command("produce", source, "--json", stdin=lines(one, {"value": None})).code == 0
    printed = command("consume", source, "--json").out
    first, second = (json.loads(line) for line in printed.splitlines())
    assert {name: first[name] for name in one} == one
    assert (first["key"], second["value"]) == ("k", None)
    assert command("produce", target, "--json", stdin=printed.encode()).code == 0
    again = command("consume", target, "--json").out.replace(target, source)
    assert again == printed


def test_unions_that_consume_prints_as_json_can_be_published(
    command: Command, logbus: Logbus, encoding: str
) -> None:
    source, target = (created(logbus, encoding, UNIONS) for _ in range(2))
    with Cluster.from_zookeeper(logbus.zookeeper) as cluster, Producer(cluster) as producer:
        producer.send_many(source, union_rows())
    printed = command("consume", source).out
    first, second, third, fourth, fifth, last = (json.loads(x) for x in printed.splitlines())
    assert (first["some"], first["at"], second["at"]) == (
        None, "2026-01-31", {"int": "2026-01-31"})  # fmt: skip
    assert (third["code"], first["code"]) == ("ab", {"base64": "/wA="})
    assert first["lasts"] == {"months": 1, "days": 2, "millis": 3}
    assert fourth["tags"] == [None, "USED", True, "xy"]
    assert (fourth["some"], fifth["some"]) == ("text", {"base64": "/w=="})
    assert last["some"] == {"bytes": "text"}
    assert command("produce", target, stdin=printed.encode()).code == 0
    assert command("consume", target).out == printed
    assert command("consume", target, "--group", target).out == printed
    with Cluster.from_zookeeper(logbus.zookeeper) as cluster, Consumer(cluster) as consumer:
        consumer.assign_topics(target)
        assert consumer.to_arrow().column("value").to_pylist() == columns_of(
            union_rows(), UNIONS).to_pylist()  # fmt: skip


@pytest.mark.parametrize("few", [True, False])
def test_a_wrong_line_is_named_and_nothing_behind_it_published(
    command: Command, logbus: Logbus, tmp_path: Path, few: bool
) -> None:
    topic = created(logbus, "columns")
    good = flights(0, 3 if few else 1_000)
    file = tmp_path / "flights.jsonl"
    file.write_bytes(lines(*good, {**good[0], "number": "x"}, good[1]))
    ended = command("produce", topic, str(file))
    assert f"Line {len(good) + 1:,} of {file} cannot be published. number is 'x' (str)" in (
        ended.refusal
    )
    assert f"Published before it: {len(good):,} records" in ended.refusal
    assert len(command("consume", topic).out.splitlines()) == len(good)
    ended = command("produce", topic, stdin=b"{no json")
    assert "Line 1 of standard input cannot be published. It is no JSON" in ended.refusal


def test_keys_and_tombstones(command: Command, logbus: Logbus) -> None:
    topic = created(logbus, "avro")
    text = b"a\t" + lines(*flights(0, 1)) + b"b\t\n"
    assert command("produce", topic, "-K", "\\t", "-Z", stdin=text).code == 0
    assert command("consume", topic, "-f", "%k %S\\n").out.splitlines()[1] == "b -1"
    printed = command("consume", topic, "--group", topic, "--json").out.splitlines()
    assert [json.loads(line)["value"] for line in printed] == [*flights(0, 1), None]
