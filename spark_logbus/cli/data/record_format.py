"""How records are printed: as values, by a format string, as JSON. Pure. Values of topics with a
schema are what ``json.dumps`` takes by then.

Format strings are kcat's: ``%t-%p@%o: %k=%s\\n``. Bytes go out as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from spark_logbus.cli.output import text_of
from spark_logbus.errors import InvalidRequestError
from spark_logbus.times import show_moment

if TYPE_CHECKING:
    from spark_logbus.client import ConsumerRecord

Show = Callable[["ConsumerRecord"], bytes]

_US_PER_MS: Final = 1000
_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\", "%": b"%"}
_TOKEN = re.compile(r"%(.)|%$|\\x([0-9A-Fa-f]{2})|\\(.)|\\$|[^%\\]+", re.DOTALL)

_FIELDS: Final[dict[str, Show]] = {
    "s": lambda record: value_text(record.value) or b"",
    "S": lambda record: _size(value_text(record.value)),
    "k": lambda record: record.key or b"",
    "K": lambda record: _size(record.key),
    "h": lambda record: b",".join(
        name.encode() + b"=" + (b"NULL" if data is None else data) for name, data in record.headers
    ),
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % (record.timestamp_us // _US_PER_MS),
    "%": lambda _: b"%",
}


def _size(data: bytes | None) -> bytes:
    return b"-1" if data is None else b"%d" % len(data)


def by_format(text: str) -> Show:
    """Print what ``text`` says. InvalidRequestError for a token that there is not."""
    parts: list[bytes | Show] = []
    for token in _TOKEN.finditer(text):
        field, hexadecimal, escape = token.groups()
        if hexadecimal is not None:
            parts.append(bytes.fromhex(hexadecimal))
        elif field is not None and field in _FIELDS:
            parts.append(_FIELDS[field])
        elif escape is not None and escape in _ESCAPES:
            parts.append(_ESCAPES[escape])
        elif token[0][0] in "%\\":
            raise InvalidRequestError(
                f"--format has {token[0]!r}; there are %s (value), %k (key), %h (headers), %t "
                "(topic), %p (partition), %o (offset), %T (timestamp, ms), %S and %K (lengths, -1 "
                r"for null), %%, and \n, \r, \t, \0, \\, \x41."
            )
        else:
            parts.append(token[0].encode())
    return lambda record: b"".join(
        part if isinstance(part, bytes) else part(record) for part in parts
    )


def value_line(record: ConsumerRecord) -> bytes:
    return (value_text(record.value) or b"") + b"\n"


def with_metadata(record: ConsumerRecord) -> bytes:
    """Partition, offset, timestamp and key before the value, with tabs between them."""
    key = b"-" if record.key is None else record.key
    at = show_moment(record.timestamp_us, timespec="milliseconds")
    place = f"{record.partition}\t{record.offset}\t{at}".encode()
    return b"\t".join((place, key, value_text(record.value) or b"")) + b"\n"


def as_json(record: ConsumerRecord) -> bytes:
    """One object a line, and a value of a schema an object in it. Bytes are text where they are
    UTF-8, else ``{"base64": ...}``; null is null."""
    line: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_us": record.timestamp_us,
        "key": text_of(record.key),
        "value": text_of(record.value) if record.value.__class__ is bytes else record.value,
    }
    if record.headers:
        line["headers"] = [[name, text_of(data)] for name, data in record.headers]
    return _json(line) + b"\n"


def value_text(value: Any) -> bytes | None:
    """Bytes as they are, and what a schema describes as JSON."""
    return value if value is None or value.__class__ is bytes else _json(value)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
