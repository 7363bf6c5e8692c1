"""Checks callers' arguments: accepts what is clear, else refuses it by name. Pure."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import wraps
from numbers import Real
from typing import Final, ParamSpec, TypeVar

from spark_logbus.config import nearest
from spark_logbus.errors import ConfigError, InvalidRequestError
from spark_logbus.model import (
    AtOffset,
    AtTimestamp,
    Earliest,
    Header,
    LastDuration,
    LastRecords,
    Latest,
    OffsetSpec,
    TopicPartition,
)
from spark_logbus.position_text import parse_position
from spark_logbus.times import MAX_DURATION_US

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
#: Longer waits, as for ever, end after eleven days: more milliseconds than sockets can wait for.
_LONGEST_WAIT_S: Final = 1_000_000.0

Headers = Sequence[Header] | Mapping[str, bytes | None]


P = ParamSpec("P")
T = TypeVar("T")


def names_keywords(method: Callable[P, T]) -> Callable[P, T]:
    """Have ``method`` refuse an argument that it does not have by InvalidRequestError, with the
    nearest one that it has. For what is not called for each record."""
    code = method.__code__
    known = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]

    @wraps(method)
    def call(*args: P.args, **given: P.kwargs) -> T:
        for name in given:
            if name not in known:
                raise _unknown_keyword(method.__name__, name, known)
        return method(*args, **given)

    return call


def _unknown_keyword(method: str, given: str, known: Sequence[str]) -> InvalidRequestError:
    near = nearest(given, known)
    hint = f"its arguments are {', '.join(known)}." if near is None else f"did you mean {near!r}?"
    if near is not None and near.endswith("_s") and not given.endswith("_s"):
        hint += " It is in seconds."
    return InvalidRequestError(f"{method} has no argument {given!r}; {hint}")


def as_bytes(what: str, data: object) -> bytes:
    """``data`` as bytes. Text is refused: its encoding is the caller's choice."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    remedy = (
        "encode text with .encode()"
        if isinstance(data, str)
        else "what it is as bytes is the caller's choice"
    )
    raise InvalidRequestError(
        f"A record's {what} must be bytes or None, got {_shown(data)}; {remedy}."
    )


def as_topic(topic: object) -> str:
    if isinstance(topic, str):
        return topic
    raise InvalidRequestError(f"topic must be a topic's name, as text, got {_shown(topic)}.")


def as_topic_partitions(topic_partitions: object) -> list[TopicPartition]:
    given = (
        None
        if isinstance(topic_partitions, str) or not isinstance(topic_partitions, Iterable)
        else list(topic_partitions)
    )
    wrong = (
        topic_partitions
        if given is None
        else next(
            (
                topic_partition
                for topic_partition in given
                if not isinstance(topic_partition, TopicPartition)
            ),
            None,
        )
    )
    if given is None or wrong is not None:
        raise InvalidRequestError(
            f"Partitions are given as TopicPartition(topic, partition), got {_shown(wrong)}."
        )
    return given


def as_offset_spec(what: str, spec: object) -> OffsetSpec:
    """A position in a log; a timestamp may be a datetime, as a record's own, and a duration a
    timedelta. Or the text that options and commands take, such as ``-10 minutes``."""
    match spec:
        case str():
            return parse_position(spec, what=what)
        case Earliest() | Latest():
            return spec
        case AtOffset(offset):
            number = _whole(offset)
            if number is not None and -(1 << 63) <= number < 1 << 63:
                return AtOffset(number)
        case AtTimestamp(timestamp_us):
            return AtTimestamp(as_timestamp_us(timestamp_us))
        case LastRecords(count):
            number = _whole(count)
            if number is not None and 0 <= number < 1 << 63:
                return LastRecords(number)
        case LastDuration(duration_us):
            if isinstance(duration_us, timedelta):
                duration_us = duration_us // _MICROSECOND
            number = _whole(duration_us)
            if number is not None and 0 <= number <= MAX_DURATION_US:
                return LastDuration(number)
    raise InvalidRequestError(
        f"{what} must be Earliest(), Latest(), AtOffset(offset), AtTimestamp(timestamp_us), "
        f"LastRecords(count) or LastDuration(duration_us), got {_shown(spec)}."
    )


def as_partition(partition: object) -> int:
    number = _whole(partition)
    if number is None:
        raise InvalidRequestError(
            f"partition must be a whole number or None, got {_shown(partition)}."
        )
    return number


def as_timestamp_us(timestamp: object) -> int:
    """µs since the epoch, of a number that is that already, or of a datetime with a time zone."""
    if timestamp.__class__ is int:
        return _within_64_bits(timestamp)
    if isinstance(timestamp, datetime):
        if timestamp.tzinfo is None or timestamp.utcoffset() is None:
            raise InvalidRequestError(
                f"timestamp_us is {timestamp!r}, a datetime without a time zone, which is no "
                "moment; give it one, as in .replace(tzinfo=timezone.utc) or .astimezone()."
            )
        return (timestamp - _EPOCH) // _MICROSECOND  # of any year, far below 64 bits
    number = _whole(timestamp)
    if number is None:
        raise InvalidRequestError(
            "timestamp_us must be a whole number of microseconds since 1970 (UTC), a datetime "
            f"with a time zone, or None, got {_shown(timestamp)}."
        )
    return _within_64_bits(number)


def _within_64_bits(timestamp_us: int) -> int:
    if not -(1 << 63) <= timestamp_us < 1 << 63:
        raise InvalidRequestError(
            f"timestamp_us is a number of microseconds that fits 64 bits, got {timestamp_us}."
        )
    return timestamp_us


def as_headers(headers: object) -> list[Header]:
    """Pairs of a name and bytes or None; a mapping gives its items."""
    if isinstance(headers, Mapping):
        headers = list(headers.items())
    if isinstance(headers, str | bytes | bytearray) or not isinstance(headers, Sequence):
        raise InvalidRequestError(
            "headers must be a mapping, or a list of pairs, of names and bytes, got "
            f"{_shown(headers)}."
        )
    checked: list[Header] = []
    for header in headers:
        if not isinstance(header, tuple | list) or len(header) != 2:
            raise InvalidRequestError(
                "headers must be a mapping, or a list of pairs, of names and bytes; one of them "
                f"is {_shown(header)}."
            )
        name, data = header
        if not isinstance(name, str):
            raise InvalidRequestError(f"A header's key must be text, got {_shown(name)}.")
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"A header's key must be text that UTF-8 can express, got {_shown(name)}."
            ) from error
        checked.append((name, None if data is None else as_bytes(f"header {name!r}", data)))
    return checked


def as_timeout_ms(timeout_s: object) -> float:
    """Milliseconds to wait, of a number of seconds; infinite ones are a very long time."""
    if isinstance(timeout_s, Real) and not isinstance(timeout_s, bool):
        try:
            seconds = float(timeout_s)
        except OverflowError:
            seconds = 0.0 if timeout_s < 0 else math.inf
        if not math.isnan(seconds):
            return 1000 * max(0.0, min(seconds, _LONGEST_WAIT_S))
    raise InvalidRequestError(f"timeout_s must be a number of seconds, got {_shown(timeout_s)}.")


def as_max_records(max_records: object) -> int:
    number = _whole(max_records)
    if number is None or number < 1:
        raise InvalidRequestError(
            f"max_records must be a whole number of at least 1, got {_shown(max_records)}."
        )
    return number


def as_partition_count(partitions: object) -> int:
    number = _whole(partitions)
    if number is None:
        raise ConfigError(f"partitions must be a whole number, got {_shown(partitions)}.")
    return number


def as_replica_count(replicas: object) -> int:
    number = _whole(replicas)
    if number is None:
        raise ConfigError(f"replicas must be a whole number, got {_shown(replicas)}.")
    return number


def as_config(config: Mapping[str, object]) -> dict[str, str]:
    """A topic's configuration as text; whole numbers are written out."""
    if not isinstance(config, Mapping):
        raise ConfigError(
            f"A topic's configuration must be a mapping of keys to values, got {_shown(config)}."
        )
    return {_key(key): _setting(key, value) for key, value in config.items()}


def _key(key: object) -> str:
    if isinstance(key, str):
        return key
    raise ConfigError(f"A topic's settings are named by text, got {_shown(key)}.")


def _setting(key: str, value: object) -> str:
    if isinstance(value, str):
        return value
    number = _whole(value)
    if number is None:
        raise ConfigError(
            f"The topic setting {key} must be text or a whole number, got {_shown(value)}."
        )
    return str(number)


def _whole(value: object) -> int | None:
    """A whole number of any type, but no truth value."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _shown(value: object) -> str:
    shown = repr(value)
    return f"{type(value).__name__} {shown if len(shown) <= 60 else shown[:60] + '...'}"
