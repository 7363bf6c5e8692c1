"""What can be set for one log, and how Kafka's topic configuration names it."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from spark_logbus.errors import ConfigError

_DAY_MS: Final = 24 * 3600 * 1000
_FOREVER: Final = (1 << 63) - 1  # Kafka's way to say "never"

# Topic key -> field, smallest value, and whether -1 (or Kafka's largest number) means none.
_TOPIC_KEYS: Final[dict[str, tuple[str, int, bool]]] = {
    "segment.bytes": ("segment_bytes", 1024, False),
    "segment.ms": ("segment_ms", 1, False),
    "index.interval.bytes": ("index_interval_bytes", 128, False),
    "retention.ms": ("retention_ms", 0, True),
    "retention.bytes": ("retention_bytes", 0, True),
    "flush.messages": ("flush_records", 1, True),
    "flush.ms": ("flush_ms", 1, True),
    "max.message.bytes": ("max_record_batch_bytes", 128, False),
    "producer.id.expiration.ms": ("producer_expiration_ms", 1, False),
}


class FlushPolicy(enum.Enum):
    """Who decides when records go to the disk, and so when consumers see them."""

    #: logbus: as soon as the disk allows, or as ``flush_records`` and ``flush_ms`` say.
    LOGBUS = "logbus"
    #: The operating system. Records are seen once they are written; a power failure may take
    #: back some that were read. Acks ``flushed`` still waits for a flush of its own.
    OS = "os"


_FLUSH_POLICY: Final = "flush.policy"


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """Limits and policies of one log."""

    # Roll before a segment grows beyond this; retention and recovery work in segments.
    segment_bytes: int = 1 << 30
    # Roll this long after a segment's first append, so that a quiet topic's data can expire.
    segment_ms: int = 7 * _DAY_MS
    # One index entry at most every so many bytes: what a reader walks over at worst.
    index_interval_bytes: int = 4096
    # Delete segments whose newest record is older; None keeps them.
    retention_ms: int | None = 7 * _DAY_MS
    # Delete the oldest segments beyond this size of the log; None sets no bound.
    retention_bytes: int | None = None
    # Flush after so many records, or so long after the first unflushed one. With both None
    # every append asks for a flush at once, and appends that arrive meanwhile share the next.
    flush_records: int | None = None
    flush_ms: int | None = None
    flush_policy: FlushPolicy = FlushPolicy.LOGBUS
    # The largest record batch that an append may hold: what a reader must fit into memory.
    max_record_batch_bytes: int = 16 << 20
    # An idempotent producer that is silent for longer may have to start over: until then the log
    # remembers it, and knows a repeated append of its for what it is.
    producer_expiration_ms: int = _DAY_MS

    def __post_init__(self) -> None:
        for key, (field, least, optional) in _TOPIC_KEYS.items():
            value = getattr(self, field)
            if value is None and optional:
                continue
            if not isinstance(value, int) or value < least:
                raise ConfigError(
                    f"{field} ({key} of a topic) is {value!r}; "
                    f"set it to a whole number of at least {least}."
                )

        if self.flush_policy is FlushPolicy.OS and not self.flushes_at_once:
            raise ConfigError(
                "flush_policy is os, which leaves flushing to the operating system, and "
                "flush_records or flush_ms is set as well; use one or the other "
                "(flush.policy, flush.messages and flush.ms of a topic)."
            )

    @property
    def flushes_at_once(self) -> bool:
        return self.flush_records is None and self.flush_ms is None

    @classmethod
    def from_topic_config(cls, config: Mapping[str, str], defaults: LogConfig) -> LogConfig:
        """``defaults``, overridden by a topic's own keys (Kafka's names).

        -1 means none where none is possible. Raises ConfigError for an unknown key, so that
        a misspelt retention does not quietly delete data.
        """
        changes: dict[str, Any] = {}
        for key, text in config.items():
            if key == _FLUSH_POLICY:
                changes["flush_policy"] = _flush_policy(text)
                continue
            if key not in _TOPIC_KEYS:
                known = (*_TOPIC_KEYS, _FLUSH_POLICY)
                near = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean {near[0]}?" if near else f"use {', '.join(known)}."
                raise ConfigError(f"The topic configuration has no key {key!r}; {hint}")
            field, least, optional = _TOPIC_KEYS[key]
            changes[field] = _number(key, text, least=least, optional=optional)
        return replace(defaults, **changes)


def _flush_policy(text: str) -> FlushPolicy:
    try:
        return FlushPolicy(text)
    except ValueError as error:
        raise ConfigError(
            f"The flush policy ({_FLUSH_POLICY} of a topic) is {text!r}; use logbus or os."
        ) from error


def _number(key: str, text: str, *, least: int, optional: bool) -> int | None:
    none_too = " (or -1 for none)" if optional else ""
    try:
        value = int(text)
    except ValueError:
        value = least - 2
    if optional and value in (-1, _FOREVER):
        return None
    if value < least:
        raise ConfigError(
            f"The topic configuration sets {key} to {text!r}; "
            f"set it to a whole number of at least {least}{none_too}."
        )
    return value
