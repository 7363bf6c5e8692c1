"""Records out of text: lines with keys, whole files, JSON lines. No clients, no console."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from io import BufferedIOBase
from typing import Any, Final

from spark_logbus.errors import ConfigError, InvalidRequestError
from spark_logbus.times import parse_moment_us

_PIECE_BYTES: Final = 1 << 18
_FIELDS: Final = frozenset({"key", "value", "headers", "partition", "timestamp_us"})
# Of what `logbus consume --json` prints, which says where a record was.
_IGNORED: Final = frozenset({"topic", "offset"})

#: A value of a topic with a schema, of what ``json.loads`` returns; raises InvalidRequestError.
TakeJson = Callable[[Any], Any]

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRecord:
    """A record that is to be published. ``value`` is bytes or None, or what the topic's schema
    describes. ``timestamp_us`` None is the time of sending."""

    value: Any
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_us: int | None = None


def delimited(source: BufferedIOBase, delimiter: bytes | None) -> Iterator[list[bytes]]:
    """The parts of ``source`` between delimiters; what follows the last one only if it is not
    empty. None is for lines, which end with a newline and one carriage return before it, if there
    is one; with a delimiter every other byte is a record's.

    Each list has what one read has completed, and may be empty: a reader of a pipe gets what is
    there, and can look before the next read if that would wait.
    """
    lines, delimiter = delimiter is None, delimiter or b"\n"
    rest = bytearray()
    while piece := source.read1(_PIECE_BYTES):
        seen = max(0, len(rest) - len(delimiter) + 1)  # what was searched in vain before
        rest += piece
        if rest.find(delimiter, seen) < 0:
            yield []
            continue
        *parts, end = bytes(rest).split(delimiter)
        rest = bytearray(end)
        yield [part.removesuffix(b"\r") for part in parts] if lines else parts
    if rest:
        yield [bytes(rest)]


class KeySplitter:
    """Cuts lines into key and value, and counts those that have no key."""

    def __init__(self, given: str) -> None:
        self.shown = "'{}'".format(given.replace("\t", "\\t"))
        self._separator = unescaped(given, option="--key-separator")
        if "\n" in given or b"\n" in self._separator:
            raise ConfigError(
                f"--key-separator is {given!r}; use a character that stands in a line."
            )
        self.lines = 0
        self.without = 0
        self.first_without = 0

    def split(self, line: bytes) -> tuple[bytes | None, bytes]:
        self.lines += 1
        key, found, value = line.partition(self._separator)
        if found:
            return key, value
        self.without += 1
        self.first_without = self.first_without or self.lines
        return None, line


def unescaped(text: str, *, option: str) -> bytes:
    """The bytes that are meant: in single quotes, shells leave a backslash as it is."""

    def meant(found: re.Match[bytes]) -> bytes:
        known = {b"\\t": b"\t", b"\\0": b"\0", b"\\n": b"\n", b"\\r": b"\r", b"\\\\": b"\\"}
        if found[0].startswith(b"\\x") and len(found[0]) == 4:
            return bytes.fromhex(found[0][2:].decode())
        if found[0] not in known:
            raise ConfigError(
                f"{option} is {text!r}; behind a backslash use t (a tab), n, r, 0, xNN, or another "
                "backslash."
            )
        return known[found[0]]

    # As the shell gave it: xNN is a byte, and what is no UTF-8 is taken too.
    data = re.sub(rb"\\(?:x[0-9A-Fa-f]{2}|.|$)", meant, os.fsencode(text))
    if not data:
        raise ConfigError(f"{option} is {text!r}; use one character or more.")
    return data


def parse_header(text: str) -> tuple[str, bytes | None]:
    """``name=value``; a name alone has no value."""
    name, found, value = text.partition("=")
    if not name:
        raise ConfigError(f"--header is {text!r}; use name=value.")
    return name, os.fsencode(value) if found else None


def parse_time(text: str) -> int:
    """Milliseconds since 1970, or a moment in ISO 8601 with its zone, in µs."""
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text) * 1000
    try:
        if datetime.fromisoformat(text.strip()).tzinfo is None:
            raise ConfigError(
                f"--timestamp is {text!r}, a time without a zone, which is no moment; write its "
                "zone behind it, such as 2026-01-31T12:00Z or 2026-01-31T12:00+08:00."
            )
        return parse_moment_us(text)
    except ValueError as error:
        raise ConfigError(
            f"--timestamp is {text!r}; use milliseconds since 1970, or a moment such as "
            "2026-01-31T12:00Z."
        ) from error


def parse_value(text: bytes, take_json: TakeJson) -> Any:
    """A value of a topic with a schema. InvalidRequestError says what is wrong."""
    return take_json(_loaded(text))


def _loaded(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"It is no JSON: {error}.") from error


def parse_json(line: bytes, take_json: TakeJson | None = None) -> InputRecord:
    """A record as ``logbus consume --json`` prints it; ``take_json`` takes its value if the topic
    has a schema. InvalidRequestError says what is wrong."""
    given = _loaded(line)
    if not isinstance(given, dict):
        raise InvalidRequestError("It is no JSON object.")
    unknown = given.keys() - _FIELDS - _IGNORED
    if unknown or "value" not in given:
        raise InvalidRequestError(
            f"It has {', '.join(sorted(given)) or 'no fields'}; use value, and optionally key, "
            "headers, partition and timestamp_us."
        )
    return InputRecord(
        value=_bytes("value", given["value"]) if take_json is None else take_json(given["value"]),
        key=_bytes("key", given.get("key")),
        headers=tuple(_headers(given.get("headers") or ())),
        partition=_whole("partition", given.get("partition")),
        timestamp_us=_whole("timestamp_us", given.get("timestamp_us")),
    )


def _bytes(name: str, given: Any) -> bytes | None:
    match given:
        case None:
            return None
        case str():
            try:
                return given.encode()
            except UnicodeEncodeError as error:  # half of a pair, as "\\ud800"
                raise InvalidRequestError(f"Its {name} is no text in UTF-8: {error}.") from error
        case {"base64": str(text)} if len(given) == 1:
            try:
                return base64.b64decode(text, validate=True)
            except binascii.Error as error:
                raise InvalidRequestError(f"Its {name} is no base64: {error}.") from error
    raise InvalidRequestError(
        f'Its {name} is {json.dumps(given)[:60]}; use text, null, or {{"base64": "..."}}.'
    )


def _headers(given: Any) -> Iterator[tuple[str, bytes | None]]:
    pairs = list(given.items()) if isinstance(given, dict) else given
    for pair in pairs if isinstance(pairs, list | tuple) else [None]:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise InvalidRequestError(
                f"Its headers are {json.dumps(given)[:60]}; use an object, or pairs, of names and "
                "values."
            )
        yield pair[0], _bytes(f"header {pair[0]}", pair[1])


def _whole(name: str, given: Any) -> int | None:
    if given is None or (isinstance(given, int) and not isinstance(given, bool)):
        return given
    raise InvalidRequestError(f"Its {name} is {json.dumps(given)[:60]}; use a whole number.")
