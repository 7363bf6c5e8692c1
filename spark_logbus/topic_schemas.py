"""Encodings and schemas of a topic's keys and values, as the topic's configuration names them.

They are decided when the topic is created, and stay: whoever reads a record of any age can rely on
them. A topic without any of them holds plain bytes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark_logbus.errors import ConfigError, InvalidNameError
from spark_logbus.model import check_name

VALUE_ENCODING: Final = "value.encoding"
VALUE_SUBJECT: Final = "value.subject"
KEY_ENCODING: Final = "key.encoding"
KEY_SUBJECT: Final = "key.subject"
SCHEMA_KEYS: Final = (VALUE_ENCODING, VALUE_SUBJECT, KEY_ENCODING, KEY_SUBJECT)


class Encoding(enum.Enum):
    """The form of values, or keys, that have a schema."""

    #: A column for each field of the schema, in the payload layout for columns.
    COLUMNS = "columns"
    #: Avro's binary encoding: a datum for each record.
    AVRO = "avro"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSchemas:
    """The encodings of a topic's values and keys, and the subjects that have their schemas; None
    where they are plain bytes."""

    value_encoding: Encoding | None = None
    value_subject: str | None = None
    key_encoding: Encoding | None = None
    key_subject: str | None = None

    def __post_init__(self) -> None:
        _check_subject(VALUE_SUBJECT, self.value_subject, VALUE_ENCODING, self.value_encoding)
        _check_subject(KEY_SUBJECT, self.key_subject, KEY_ENCODING, self.key_encoding)
        if self.key_encoding is Encoding.COLUMNS:
            raise ConfigError(
                f"{KEY_ENCODING} is columns, and keys cannot be columns: they are hashed, compared "
                "and compacted as bytes. Use avro."
            )

    @property
    def has_columns(self) -> bool:
        return self.value_encoding is Encoding.COLUMNS

    @property
    def subjects(self) -> dict[str, str]:
        """The subject of each key of the configuration that names one."""
        named = {VALUE_SUBJECT: self.value_subject, KEY_SUBJECT: self.key_subject}
        return {key: subject for key, subject in named.items() if subject is not None}

    @classmethod
    def from_topic_config(cls, config: Mapping[str, str]) -> TopicSchemas:
        """Raises ConfigError for what no topic can have."""
        if config.keys().isdisjoint(SCHEMA_KEYS):
            return PLAIN
        return cls(
            value_encoding=_encoding(VALUE_ENCODING, config.get(VALUE_ENCODING)),
            value_subject=config.get(VALUE_SUBJECT),
            key_encoding=_encoding(KEY_ENCODING, config.get(KEY_ENCODING)),
            key_subject=config.get(KEY_SUBJECT),
        )


def with_subjects(topic: str, config: Mapping[str, str]) -> dict[str, str]:
    """``config`` with the subjects written out that it leaves to the default, ``<topic>-value`` and
    ``<topic>-key``."""
    written = dict(config)
    for encoding, subject, what in (
        (VALUE_ENCODING, VALUE_SUBJECT, "value"),
        (KEY_ENCODING, KEY_SUBJECT, "key"),
    ):
        if encoding in written:
            written.setdefault(subject, f"{topic}-{what}")
    return written


def check_unchanged(topic: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raise ConfigError where an alteration changes how records are encoded."""
    for key in SCHEMA_KEYS:
        if before.get(key) != after.get(key):
            raise ConfigError(
                f"{key} of the topic {topic!r} is {_shown(before.get(key))} and cannot become "
                f"{_shown(after.get(key))}: records that are there would no longer fit. It is "
                "fixed when a topic is created; create another topic."
            )


def _encoding(key: str, text: str | None) -> Encoding | None:
    if text is None:
        return None
    try:
        return Encoding(text)
    except ValueError:
        known = "columns or avro" if key == VALUE_ENCODING else "avro"
        raise ConfigError(
            f"The topic configuration sets {key} to {text!r}; use {known}, or leave it out for "
            "plain bytes."
        ) from None


def _check_subject(key: str, subject: str | None, of: str, encoding: Encoding | None) -> None:
    if subject is None:
        return
    if encoding is None:
        raise ConfigError(
            f"The topic configuration sets {key} to {subject!r} and no {of}; set that too, or "
            f"leave {key} out for plain bytes."
        )
    try:
        check_name("subject", subject)
    except InvalidNameError as error:
        raise ConfigError(f"The topic configuration's {key}: {error.message}") from error


def _shown(value: str | None) -> str:
    return "not set" if value is None else repr(value)


#: Of a topic without schemas.
PLAIN: Final = TopicSchemas()
