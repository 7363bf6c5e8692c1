"""The schemas of a topic, looked up where ZooKeeper can be asked, and used where it cannot."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_logbus.errors import InvalidRequestError
from spark_logbus.topic_schemas import Encoding, TopicSchemas

if TYPE_CHECKING:
    from spark_logbus.client.cluster.cluster import Cluster
    from spark_logbus.schemas.registry import SchemaRegistry


@dataclass(frozen=True, slots=True)
class ValueSchemas:
    """All that a reader has to know of a topic's schemas. Picklable: it goes to Spark's tasks."""

    topic: str
    encoding: Encoding

    reader: str
    """The schema to read under, as JSON text with all that it refers to."""

    writers: Mapping[int, str]
    """The schemas that values may be written with, by id, in the same form."""


@dataclass(frozen=True, slots=True)
class WriterSchema:
    """All that a writer has to know of a topic's schema. Picklable: it goes to Spark's tasks."""

    encoding: Encoding
    schema_id: int

    text: str
    """As JSON, with all that it refers to."""


@contextmanager
def opened_registry(cluster: Cluster, *, client_name: str) -> Iterator[SchemaRegistry]:
    """The registry of the cluster's ZooKeeper, in a short session.

    Raises CoordinationError, and InvalidRequestError where ZooKeeper's address is not known.
    """
    if cluster.zookeeper is None:
        raise InvalidRequestError(
            "The topic has a schema, which is in ZooKeeper, and this client knows only brokers; "
            "connect with Cluster.from_zookeeper."
        )
    # Imported here: clients of plain topics need neither.
    from spark_logbus.schemas.registry import SchemaRegistry
    from spark_logbus.zookeeper import Session

    with Session(
        cluster.zookeeper,
        client_name=client_name,
        connect_timeout_ms=cluster.config.connect_timeout_ms,
        expects_cluster=True,
    ) as session:
        yield SchemaRegistry(session)


def find_writer_schema(registry: SchemaRegistry, config: Mapping[str, str]) -> WriterSchema | None:
    """The latest schema of a topic's values; None for a topic of plain bytes.

    Raises UnknownSubjectError and CoordinationError.
    """
    schemas = TopicSchemas.from_topic_config(config)
    if schemas.value_encoding is None or schemas.value_subject is None:
        return None
    schema_id = registry.version(schemas.value_subject).schema_id
    return WriterSchema(schemas.value_encoding, schema_id, json.dumps(registry.avro(schema_id)))


def find_value_schemas(
    registry: SchemaRegistry, topic: str, config: Mapping[str, str], *, version: int | None = None
) -> ValueSchemas | None:
    """What a reader of the topic has to know to read it under that version of its subject, or the
    latest; None for a topic of plain bytes.

    Raises UnknownSubjectError, UnknownVersionError and CoordinationError.
    """
    schemas = TopicSchemas.from_topic_config(config)
    encoding, subject = schemas.value_encoding, schemas.value_subject
    if encoding is None or subject is None:
        return None
    reader = registry.version(subject) if version is None else registry.version(subject, version)
    # With those that were deleted softly: records that have them are still there.
    ids = registry.schema_ids(subject, deleted=True)
    texts = {schema_id: json.dumps(registry.avro(schema_id)) for schema_id in ids}
    return ValueSchemas(topic, encoding, texts[reader.schema_id], texts)
