"""Settings of one log, and their names in Kafka's topic configuration."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from spark_logbus.config import OF_TOPICS_ONLY, nearest
from spark_logbus.errors import ConfigError
from spark_logbus.times import US_PER_MS, parse_duration_us
from spark_logbus.topic_replication import REPLICATION_KEYS
from spark_logbus.topic_schemas import (
    PLAIN,
    SCHEMA_KEYS,
    VALUE_ENCODING,
    Encoding,
    TopicSchemas,
)

_DAY_MS: Final = 24 * 3600 * 1000
_LARGEST: Final = (1 << 63) - 1  # of a number in Kafka's topic configuration
_FOREVER: Final = _LARGEST  # Kafka's way to say "never"

# Topic key -> field, smallest value, and whether -1 (or Kafka's largest number) means none.
TOPIC_KEYS: Final[dict[str, tuple[str, int, bool]]] = {
    "segment.bytes": ("segment_bytes", 1024, False),
    "segment.ms": ("segment_ms", 1, False),
    "index.interval.bytes": ("index_interval_bytes", 128, False),
    "retention.ms": ("retention_ms", 0, True),
    "retention.bytes": ("retention_bytes", 0, True),
    "flush.messages": ("flush_records", 1, True),
    "flush.ms": ("flush_ms", 1, True),
    "max.message.bytes": ("max_record_batch_bytes", 128, False),
    "producer.id.expiration.ms": ("producer_expiration_ms", 1, False),
    "staging.retention.ms": ("staging_retention_ms", 1000, False),
    "min.compaction.lag.ms": ("min_compaction_lag_ms", 0, False),
    "max.compaction.lag.ms": ("max_compaction_lag_ms", 1, True),
    "delete.retention.ms": ("delete_retention_ms", 0, False),
}
# Topic keys with values that are no whole numbers (see ``TEXT_KEYS``).
_POLICY_KEY: Final = "cleanup.policy"
_RATIO_KEY: Final = "min.cleanable.dirty.ratio"
_FLUSH_KEY: Final = "flush.policy"
_POLICIES: Final = ("delete", "compact", "compact,delete")


class FlushPolicy(enum.Enum):
    """The actor that decides when records go to the disk, and so when consumers see them."""

    #: logbus: as soon as the disk allows, or as ``flush_records`` and ``flush_ms`` say.
    LOGBUS = "logbus"
    #: The operating system. Records are seen once they are written; a power failure may take
    #: back some that were read. Acks ``flushed`` still waits for a flush of its own.
    OS = "os"


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """Limits and policies of one log."""

    #: Roll before a segment grows beyond this; retention and recovery work in segments.
    segment_bytes: int = 1 << 30
    #: Roll this long after a segment's first append, so that a quiet topic's data can expire.
    segment_ms: int = 7 * _DAY_MS
    #: One index entry at most every so many bytes: what a reader walks over at worst.
    index_interval_bytes: int = 4096
    #: Delete segments whose newest record was appended longer ago, and is older by its own time
    #: too; none keeps them.
    retention_ms: int | None = 7 * _DAY_MS
    #: Delete the oldest segments beyond this size of the log; none sets no bound.
    retention_bytes: int | None = None
    #: Flush after so many records. Without this and ``flush_ms`` every append asks for a flush at
    #: once, and appends that arrive meanwhile share the next.
    flush_records: int | None = None
    #: Flush so long after the first record that is not flushed.
    flush_ms: int | None = None
    #: ``logbus``: as soon as the disk allows, or as ``flush_records`` and ``flush_ms`` say. ``os``
    #: leaves it to the operating system; read docs/guarantees.md first.
    flush_policy: FlushPolicy = FlushPolicy.LOGBUS
    #: The largest record batch that an append may hold: what a reader must fit into memory.
    max_record_batch_bytes: int = 16 << 20
    #: An idempotent producer that is silent for longer may have to start over: until then the log
    #: remembers it, and can recognise a repeated append.
    producer_expiration_ms: int = _DAY_MS
    #: What an atomic write has staged and not committed so long after is dropped. A Spark job that
    #: takes longer than this between its first finished task and its end cannot commit.
    staging_retention_ms: int = _DAY_MS
    #: What happens to old records: ``delete`` by retention, ``compact`` to the newest of each
    #: key, or ``compact,delete`` for both.
    cleanup_policy: str = "delete"
    #: Compact once this share of the log's sealed bytes has come since the last time.
    min_cleanable_dirty_ratio: float = 0.5
    #: No record is removed by compaction earlier than this after its append.
    min_compaction_lag_ms: int = 0
    #: A log is compacted, whatever its share, this long after an append; none sets no bound.
    max_compaction_lag_ms: int | None = None
    #: Tombstones stay this long after the compaction that removed what they delete, so that a
    #: reader under way sees them.
    delete_retention_ms: int = _DAY_MS
    #: How values and keys are encoded, and the subjects of their schemas; a topic's own always.
    schemas: TopicSchemas = field(default=PLAIN, metadata=OF_TOPICS_ONLY)

    def __post_init__(self) -> None:
        for key, (name, least, optional) in TOPIC_KEYS.items():
            value = getattr(self, name)
            if value is None and optional:
                continue
            if not isinstance(value, int) or not least <= value <= _LARGEST:
                raise ConfigError(
                    f"{name} ({key} of a topic) is {value!r}; "
                    f"set it to a whole number of at least {least}, which fits 64 bits."
                )
        if self.flush_policy is FlushPolicy.OS and not self.flushes_at_once:
            raise ConfigError(
                "flush_policy is os, which leaves flushing to the operating system, and "
                "flush_records or flush_ms is set as well; use one or the other "
                "(flush.policy, flush.messages and flush.ms of a topic)."
            )
        _check_policy(self.cleanup_policy, f"cleanup_policy ({_POLICY_KEY} of a topic)")
        ratio = self.min_cleanable_dirty_ratio
        if not isinstance(ratio, int | float) or not 0 <= ratio <= 1:
            raise ConfigError(
                f"min_cleanable_dirty_ratio ({_RATIO_KEY} of a topic) is {ratio!r}; "
                "set it to a number from 0 to 1."
            )
        longest = self.max_compaction_lag_ms
        if longest is not None and longest < self.min_compaction_lag_ms:
            raise ConfigError(
                f"max_compaction_lag_ms (max.compaction.lag.ms of a topic) is {longest}, below "
                f"min_compaction_lag_ms, {self.min_compaction_lag_ms}; raise the one or lower "
                "the other."
            )
        if self.compacts and self.schemas.has_columns:
            raise ConfigError(
                f"{_POLICY_KEY} of a topic is {self.cleanup_policy}, and its {VALUE_ENCODING} is "
                f"{Encoding.COLUMNS.value}: record batches of columns cannot be compacted. Use "
                f"{VALUE_ENCODING} {Encoding.AVRO.value}, or {_POLICY_KEY} delete."
            )

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def roll_ms(self) -> int:
        """Age to roll at: early enough for compaction too, which leaves the active segment out."""
        if self.compacts and self.max_compaction_lag_ms is not None:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms

    @property
    def flushes_at_once(self) -> bool:
        return self.flush_records is None and self.flush_ms is None

    @property
    def topic_config(self) -> dict[str, str]:
        """Settings with a default, under their names in a topic's configuration; -1 is none."""
        fields = {key: name for key, (name, *_) in TOPIC_KEYS.items()}
        fields |= {key: name for key, (name, _) in TEXT_KEYS.items()}
        return {key: _as_text(getattr(self, name)) for key, name in fields.items()}

    @classmethod
    def from_topic_config(cls, config: Mapping[str, str], defaults: LogConfig) -> LogConfig:
        """Returns ``defaults``, overridden by a topic's own keys (Kafka's names).

        -1 means none where none is possible. Raises ConfigError for an unknown key, so that
        a misspelt retention does not quietly delete data.
        """
        changes: dict[str, Any] = {}
        for key, text in config.items():
            if key in TEXT_KEYS:
                name, parse = TEXT_KEYS[key]
                changes[name] = parse(text)
            elif key in TOPIC_KEYS:
                name, least, optional = TOPIC_KEYS[key]
                changes[name] = _number(key, text, least=least, optional=optional)
            elif key not in SCHEMA_KEYS and key not in REPLICATION_KEYS:
                known = (*TOPIC_KEYS, *TEXT_KEYS, *SCHEMA_KEYS, *REPLICATION_KEYS)
                near = nearest(key, known)
                hint = f"did you mean {near}?" if near else f"use {', '.join(known)}."
                raise ConfigError(f"The topic configuration has no key {key!r}; {hint}")
        return replace(defaults, schemas=TopicSchemas.from_topic_config(config), **changes)


def _as_text(value: Any) -> str:
    if value is None:
        return "-1"
    return str(value.value if isinstance(value, enum.Enum) else value)


def _flush_policy(text: str) -> FlushPolicy:
    try:
        return FlushPolicy(text)
    except ValueError as error:
        raise ConfigError(
            f"The flush policy ({_FLUSH_KEY} of a topic) is {text!r}; use logbus or os."
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
            f"set it to a whole number of at least {least}{none_too}.{_meant(key, text)}"
        )
    if value > _LARGEST:
        raise ConfigError(
            f"The topic configuration sets {key} to {text!r}; {_LARGEST} is the largest number"
            f"{' and means none' if optional else ''}."
        )
    return value


def _meant(key: str, text: str) -> str:
    """A hint at what ``7d`` is in milliseconds, where those are wanted; else nothing."""
    try:
        duration_us = parse_duration_us(text)
    except ValueError:
        return ""
    return f" {text} is {duration_us // US_PER_MS} ms." if key.endswith(".ms") else ""


def _policy(text: str) -> str:
    """Reads policies in any order and with spaces, as Kafka takes them."""
    policy = ",".join(sorted({part.strip() for part in text.split(",")}))
    _check_policy(policy, f"The topic configuration's {_POLICY_KEY}")
    return policy


def _check_policy(policy: object, what: str) -> None:
    if policy not in _POLICIES:
        near = nearest(str(policy), _POLICIES)
        hint = f"did you mean {near}?" if near else f"use {' or '.join(_POLICIES)}."
        raise ConfigError(f"{what} is {policy!r}; {hint}")


def _ratio(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(
            f"The topic configuration sets {_RATIO_KEY} to {text!r}; "
            "set it to a number from 0 to 1."
        ) from None


# Topic key -> field, and how its text is read.
TEXT_KEYS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    _POLICY_KEY: ("cleanup_policy", _policy),
    _RATIO_KEY: ("min_cleanable_dirty_ratio", _ratio),
    _FLUSH_KEY: ("flush_policy", _flush_policy),
}
