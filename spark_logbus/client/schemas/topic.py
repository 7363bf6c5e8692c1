"""The schemas of a topic, looked up where ZooKeeper can be asked, and used where it cannot."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from spark_logbus.errors import InvalidRequestError
from spark_logbus.topic_schemas import Encoding, TopicSchemas

if TYPE_CHECKING:
    from spark_logbus.client.cluster.cluster import Cluster
    from spark_logbus.schemas.registry import SchemaRegistry

#: Of all schemas of a topic together. Each task of Spark gets them.
MAX_TEXT_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class ValueSchemas:
    """Schemas of a topic, as far as a reader has to know them. Picklable: it goes to Spark's
    tasks."""

    topic: str
    encoding: Encoding

    reader: str
    """The schema to read under, as JSON text with all that it refers to."""

    writers: Mapping[int, str]
    """The schemas that values may be written with, by id, in the same form."""

    subject: str = ""
    """The subject that has them."""

    versions: Mapping[int, int] = field(default_factory=dict)
    """Their versions in it, by id."""

    reader_id: int | None = None
    """The id of ``reader``, which is one of them; None: it is not known."""

    def read_under(self, schema_id: int) -> ValueSchemas:
        """Returns the same schemas, to be read under another of ``writers``."""
        return replace(self, reader=self.writers[schema_id], reader_id=schema_id)

    def named(self, schema_id: int) -> str:
        """Names one of the schemas, for people."""
        version = self.versions.get(schema_id)
        if version is None:
            return f"the schema with the id {schema_id}"
        return f"version {version} of the schema (id {schema_id})"

    @property
    def reader_name(self) -> str:
        """The schema to read under, for people."""
        return "the reader's schema" if self.reader_id is None else self.named(self.reader_id)


@dataclass(frozen=True, slots=True)
class WriterSchema:
    """Schema of a topic, as far as a writer has to know it. Picklable: it goes to Spark's tasks."""

    encoding: Encoding
    schema_id: int

    text: str
    """As JSON, with all that it refers to."""

    version: int | None = None
    """Its version in the topic's subject; None: it is not known."""


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
    latest = registry.version(schemas.value_subject)
    text = json.dumps(registry.avro(latest.schema_id))
    return WriterSchema(schemas.value_encoding, latest.schema_id, text, latest.version)


def find_value_schemas(
    registry: SchemaRegistry,
    topic: str,
    config: Mapping[str, str],
    *,
    version: int | None = None,
    known: ValueSchemas | None = None,
) -> ValueSchemas | None:
    """Returns what a reader of the topic has to know to read it under that version of its subject,
    or the latest; None for a topic of plain bytes. What is ``known`` of it stays, and the reader's
    schema with it.

    Versions that were deleted softly are among them, and may be read under: records that have them
    are still there. Raises UnknownSubjectError, UnknownVersionError, SchemaTooLargeError and
    CoordinationError.
    """
    # Imported here: tasks use this module and need neither.
    from spark_logbus.schemas.errors import SchemaTooLargeError, UnknownVersionError
    from spark_logbus.schemas.registry.subjects import LATEST

    schemas = TopicSchemas.from_topic_config(config)
    encoding, name = schemas.value_encoding, schemas.value_subject
    if encoding is None or name is None:
        return None
    subject = registry.subject(name)
    if known is None:
        wanted = subject.live[-1] if version is None and subject.live else None
        wanted = wanted or subject.find(LATEST if version is None else version, deleted=True)
        known = ValueSchemas(topic, encoding, "", {}, name, {}, wanted.schema_id)
    versions = {**known.versions, **{each.schema_id: each.version for each in subject.versions}}
    texts = dict(known.writers)
    size = sum(map(len, texts.values()))
    for schema_id, schema in registry.avro_of(versions.keys() - texts.keys()):
        texts[schema_id] = json.dumps(schema)
        size += len(texts[schema_id])
        if size > MAX_TEXT_BYTES:
            raise SchemaTooLargeError(
                f"The {len(versions)} schemas of the subject {name!r} take more than "
                f"{MAX_TEXT_BYTES:,} bytes, and a reader of the topic {topic!r} takes no more. "
                "Delete versions permanently with which no record was written that is still there."
            )
    if known.reader_id not in texts:
        raise UnknownVersionError(
            f"The schema to read the topic {topic!r} under, {known.reader_name}, was deleted "
            "permanently just now; try again."
        )
    found = replace(known, writers=texts, versions=versions)
    return found.read_under(known.reader_id)
