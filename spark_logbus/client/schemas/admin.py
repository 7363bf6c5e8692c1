"""Schemas of topics: registered before a topic is created, and described.

Schemas are in ZooKeeper, so this needs a session there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from avro_columns.values.resolved_tree import parse
from spark_logbus.errors import ConfigError
from spark_logbus.log.config import LogConfig
from spark_logbus.schemas.avro_errors import logbus_errors
from spark_logbus.schemas.errors import UnknownSubjectError
from spark_logbus.schemas.registry.registry import SchemaRegistry
from spark_logbus.topic_schemas import (
    KEY_ENCODING,
    KEY_SUBJECT,
    VALUE_ENCODING,
    VALUE_SUBJECT,
    TopicSchemas,
    with_subjects,
)
from spark_logbus.zookeeper import Session, default_connect


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopicSchema:
    """Schema that is given for a new topic's values, or keys: its text or JSON value, or None for a
    subject that has schemas already."""

    schema: Any = None
    encoding: str | None = None
    subject: str | None = None

    @property
    def text(self) -> str | None:
        if self.schema is None or isinstance(self.schema, str):
            return self.schema
        return json.dumps(self.schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaDescription:
    """The schemas of a topic's values, or keys: ``of`` is ``"value"`` or ``"key"``. ``version`` and
    ``schema_id`` are the latest ones of the subject, None where it has none any more."""

    of: str
    encoding: str
    subject: str
    version: int | None
    schema_id: int | None


def with_schemas(
    topic: str,
    config: Mapping[str, str],
    *,
    value: tuple[Any, str | None, str | None],
    key: tuple[Any, str | None, str | None],
    zookeeper: str | None,
) -> dict[str, str]:
    """The configuration of a new topic with what is given of schemas, encodings and subjects; the
    schemas are registered. Raises what ``topic_config`` and ``register_schemas`` do."""
    of_value, of_key = (
        NewTopicSchema(schema=schema, encoding=encoding, subject=subject)
        for schema, encoding, subject in (value, key)
    )
    written = topic_config(topic, config, value=of_value, key=of_key)
    register_schemas(written, value=of_value, key=of_key, zookeeper=zookeeper)
    return written


def topic_config(
    topic: str, config: Mapping[str, str], *, value: NewTopicSchema, key: NewTopicSchema
) -> dict[str, str]:
    """The configuration of a new topic with what is given of its schemas. Raises ConfigError."""
    written = dict(config)
    for wanted, encoding, subject, default in (
        (value, VALUE_ENCODING, VALUE_SUBJECT, "columns"),
        (key, KEY_ENCODING, KEY_SUBJECT, "avro"),
    ):
        form = wanted.encoding
        if wanted.schema is not None and form is None and encoding not in config:
            form = default
        for name, given in ((encoding, form), (subject, wanted.subject)):
            if given is None:
                continue
            if config.get(name, given) != given:
                raise ConfigError(
                    f"{name} of the topic {topic!r} is given twice, as {config[name]!r} and as "
                    f"{given!r}; give it once."
                )
            written[name] = given
    written = with_subjects(topic, written)
    LogConfig.from_topic_config(written, LogConfig())
    return written


def register_schemas(
    config: Mapping[str, str],
    *,
    value: NewTopicSchema,
    key: NewTopicSchema,
    zookeeper: str | None,
) -> None:
    """Register the schemas of a new topic with that configuration, all of them good for columns;
    one that is not given must be there. Raises UnsupportedSchemaError, InvalidSchemaError,
    IncompatibleSchemaError, UnknownSubjectError, CoordinationError."""
    schemas = TopicSchemas.from_topic_config(config)
    subjects = [(value.text, schemas.value_subject), (key.text, schemas.key_subject)]
    for text, _ in subjects:
        if text is not None:
            _check_columns(text)
    with _registry(zookeeper) as registry:
        for text, subject in subjects:
            if subject is not None and text is None:
                _check_columns(registry.avro(_latest(registry, subject)))
        for text, subject in subjects:
            if subject is not None and text is not None:
                registry.register(subject, text)


@logbus_errors
def _check_columns(schema: Any) -> None:
    """Raises UnsupportedSchemaError for a schema whose values no columns can hold."""
    parse(schema)


def _latest(registry: SchemaRegistry, subject: str) -> int:
    try:
        return registry.version(subject).schema_id
    except UnknownSubjectError as error:
        raise UnknownSubjectError(
            f"{error.message} A topic's schemas are to be there: register one under it, or create "
            "the topic with its schema."
        ) from error


def describe_schemas(
    configs: Mapping[str, Mapping[str, str]], *, zookeeper: str | None
) -> dict[str, list[SchemaDescription]]:
    """Returns the schemas of each topic, by its configuration; an empty list for one of plain
    bytes. Raises CoordinationError."""
    found = {topic: list(_encoded(config)) for topic, config in configs.items()}
    if not any(found.values()):
        return found  # without ZooKeeper
    with _registry(zookeeper) as registry:
        return {
            topic: [_with_latest(registry, each) for each in of_topic]
            for topic, of_topic in found.items()
        }


def _encoded(config: Mapping[str, str]) -> Iterable[SchemaDescription]:
    for of, encoding, subject in (
        ("key", KEY_ENCODING, KEY_SUBJECT),
        ("value", VALUE_ENCODING, VALUE_SUBJECT),
    ):
        if encoding in config and subject in config:
            yield SchemaDescription(
                of=of,
                encoding=config[encoding],
                subject=config[subject],
                version=None,
                schema_id=None,
            )


def _with_latest(registry: SchemaRegistry, described: SchemaDescription) -> SchemaDescription:
    live = registry.subject(described.subject).live
    if not live:
        return described
    return replace(described, version=live[-1].version, schema_id=live[-1].schema_id)


@contextmanager
def _registry(zookeeper: str | None) -> Iterator[SchemaRegistry]:
    """Opens the registry in a short session, by default with the ZooKeeper of the environment."""
    connect = zookeeper or default_connect()
    with Session(connect, client_name="logbus-topics", expects_cluster=True) as session:
        yield SchemaRegistry(session)
