from __future__ import annotations

import json

import pytest

from spark_logbus.cli.data.record_format import as_json, by_format, value_line
from spark_logbus.client import ConsumerRecord
from spark_logbus.errors import InvalidRequestError
from spark_logbus.model import TimestampType


def record(
    value: bytes | None = b"v",
    *,
    key: bytes | None = b"k",
    headers: tuple[tuple[str, bytes | None], ...] = (),
) -> ConsumerRecord:
    return ConsumerRecord("t", 3, 17, 1_700_001, TimestampType.CREATE_TIME, key, value, headers)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"%s\n", b"v\n"),
        (r"%t-%p@%o: %k=%s\r\n", b"t-3@17: k=v\r\n"),
        ("%S %K %T", b"1 1 1700"),
        ("%h", b"a=1,b=NULL"),
        (r"\x41\\\t\0%%", b"A\\\t\0%"),
        ("", b""),
        ("é %s", "é v".encode()),
    ],
)
def test_formats(text: str, expected: bytes) -> None:
    assert by_format(text)(record(headers=(("a", b"1"), ("b", None)))) == expected


def test_null_and_empty_differ_in_their_lengths() -> None:
    show = by_format("[%s|%S|%k|%K]")
    assert show(record(None, key=None)) == b"[|-1||-1]"
    assert show(record(b"", key=b"")) == b"[|0||0]"
    assert show(record(b"\xff\0")) == b"[\xff\0|2|k|1]"


@pytest.mark.parametrize("text", ["%x", "%", r"\q", "\\", r"\x4"])
def test_what_is_no_format(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="--format has"):
        by_format(f"a{text}")


def test_json() -> None:
    headers = (("a", b"1"), ("b", None))
    assert json.loads(as_json(record("é".encode(), key=None, headers=headers))) == {
        "topic": "t", "partition": 3, "offset": 17, "timestamp_us": 1_700_001,
        "key": None, "value": "é", "headers": [["a", "1"], ["b", None]],
    }  # fmt: skip
    line = as_json(record(b"\xff\n", key=b""))
    assert line.count(b"\n") == 1
    assert json.loads(line)["value"] == {"base64": "/wo="}
    assert json.loads(line)["key"] == ""
    assert json.loads(as_json(record(None)))["value"] is None


def test_values() -> None:
    assert [value_line(record(value)) for value in (b"v", b"", None)] == [b"v\n", b"\n", b"\n"]
