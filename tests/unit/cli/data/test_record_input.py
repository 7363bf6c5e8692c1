from __future__ import annotations

from io import BytesIO
from itertools import chain

import pytest

from spark_logbus.cli.data.record_input import (
    InputRecord,
    delimited,
    parse_header,
    parse_json,
    parse_time,
    unescaped,
)
from spark_logbus.errors import ConfigError, InvalidRequestError


class Dribbling(BytesIO):
    """Gives a byte at a time."""

    def read1(self, _: int | None = -1, /) -> bytes:
        return super().read1(1)


@pytest.mark.parametrize("kind", [BytesIO, Dribbling])
@pytest.mark.parametrize(
    ("data", "delimiter", "parts"),
    [
        (b"a\nb\r\n\nc", None, [b"a", b"b", b"", b"c"]),
        (b"a\n", b"\n", [b"a"]),
        (b"a||b||", b"||", [b"a", b"b"]),
        (b"a|b||c\n", b"||", [b"a|b", b"c\n"]),
        (b"", b"|", []),
        (b"\0a\0\0", b"\0", [b"", b"a", b""]),
        (b"a\r\nb\nc\r\n", None, [b"a", b"b", b"c"]),
        (b"a\r\r\n\r\n\r", None, [b"a\r", b"", b"\r"]),
        (b"a\r\n\rb\r", b"\n", [b"a\r", b"\rb\r"]),
        (b"a\r\nb\r\n", b"\r\n", [b"a", b"b"]),
    ],
)
def test_lines_lose_one_carriage_return_and_other_records_nothing(
    kind: type[BytesIO], data: bytes, delimiter: bytes | None, parts: list[bytes]
) -> None:
    assert list(chain.from_iterable(delimited(kind(data), delimiter))) == parts


@pytest.mark.parametrize(
    ("line", "record"),
    [
        (b'{"value": "v"}', InputRecord(value=b"v")),
        (b'{"value": null, "key": ""}', InputRecord(value=None, key=b"")),
        (b'{"value": {"base64": "/wo="}}', InputRecord(value=b"\xff\n")),
        (
            b'{"topic": "t", "offset": 7, "partition": 2, "timestamp_us": 5, "value": "\xc3\xa9",'
            b' "headers": [["a", "1"], ["a", null]]}',
            InputRecord(
                value="é".encode(), partition=2, timestamp_us=5, headers=(("a", b"1"), ("a", None))
            ),
        ),
        (b'{"value": "v", "headers": {"a": "1"}}', InputRecord(value=b"v", headers=(("a", b"1"),))),
    ],
)
def test_json(line: bytes, record: InputRecord) -> None:
    assert parse_json(line) == record


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "no JSON: "),
        (b"\xff", "no JSON: "),
        (b"[1]", "no JSON object"),
        (b"{}", "It has no fields; use value"),
        (b'{"value": "v", "Key": "k"}', "It has Key, value; use value, and"),
        (b'{"value": 7}', 'Its value is 7; use text, null, or {"base64"'),
        (b'{"value": {"base64": "%"}}', "Its value is no base64"),
        (b'{"value": "v", "headers": [["a"]]}', "Its headers are"),
        (b'{"value": "v", "headers": 7}', "Its headers are 7"),
        (b'{"value": "v", "partition": "1"}', 'Its partition is "1"; use a whole number'),
        (b'{"value": "v", "timestamp_us": true}', "Its timestamp_us is true"),
    ],
)
def test_json_that_is_no_record(line: bytes, message: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse_json(line)
    assert message in str(refused.value)


def test_times_and_headers() -> None:
    assert parse_time("1700000000000") == 1_700_000_000_000_000
    assert parse_time("1970-01-01T00:00:01Z") == 1_000_000
    assert parse_header("a=b=c") == ("a", b"b=c")
    assert parse_header("a=") == ("a", b"")
    assert parse_header("a") == ("a", None)
    with pytest.raises(ConfigError, match="--timestamp is 'noon'"):
        parse_time("noon")
    with pytest.raises(ConfigError, match="--header is '=b'"):
        parse_header("=b")


def test_what_is_typed_for_bytes() -> None:
    assert unescaped(r"\t\x7c\0\\n", option="--x") == b"\t|\0\\n"
    for wrong in ("", r"\q", "\\"):
        with pytest.raises(ConfigError, match="--x is"):
            unescaped(wrong, option="--x")
