"""Plans writes to topics with a schema: the schema to write with, and the columns that fit it."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Final

from pyspark.sql.types import StructType

from spark_logbus.client.schemas.topic import WriterSchema, find_writer_schema
from spark_logbus.errors import InvalidOptionError
from spark_logbus.offsets.descriptions import TopicDescription
from spark_logbus.schemas.errors import (
    IncompatibleSchemaError,
    NotPermittedError,
    SubjectChangedError,
)
from spark_logbus.schemas.registry import SchemaRegistry
from spark_logbus.sink.columns import SinkColumns
from spark_logbus.sink.options import SinkOptions
from spark_logbus.sink.typed_columns import check_typed_columns, evolved
from spark_logbus.topic_schemas import TopicSchemas
from spark_logbus.zookeeper import Session

_TRIES: Final = 20  # at adding columns that others add columns beside


def plan_typed(
    options: SinkOptions, schema: StructType, topic: TopicDescription
) -> tuple[SinkColumns, WriterSchema]:
    """The columns of a write to ``topic``, which has a schema, and that schema.

    With ``evolve`` columns that it lacks are registered as a new version. Raises
    InvalidOptionError for columns that do not fit, and for a version that is not compatible;
    CoordinationError. A stream's micro-batches are planned one by one, and go on with what the
    first of this process has found.
    """
    subject = TopicSchemas.from_topic_config(topic.config).value_subject
    assert subject is not None, "a topic with an encoding has a subject"
    return _plan(
        options.zookeeper,
        topic.name,
        topic.topic_id,
        subject,
        tuple(sorted(topic.config.items())),
        schema.json(),
        options.evolve,
    )


@lru_cache(maxsize=64)
def _plan(
    zookeeper: str,
    topic: str,
    topic_id: str,
    subject: str,
    config: tuple[tuple[str, str], ...],
    schema_json: str,
    evolve: bool,
) -> tuple[SinkColumns, WriterSchema]:
    del topic_id  # what is remembered is of this topic, and of no later one of its name
    schema = StructType.fromJson(json.loads(schema_json))
    with Session(zookeeper, client_name="spark-sink", expects_cluster=True) as session:
        registry = SchemaRegistry(session)
        for _ in range(_TRIES):
            try:
                return _found(registry, topic, subject, dict(config), schema, evolve=evolve)
            except SubjectChangedError as error:
                changed = error  # by another writer, whose columns are to stay
        raise changed


def _found(
    registry: SchemaRegistry,
    topic: str,
    subject: str,
    config: dict[str, str],
    schema: StructType,
    *,
    evolve: bool,
) -> tuple[SinkColumns, WriterSchema]:
    """Raises SubjectChangedError if somebody else registers a version meanwhile."""
    found = find_writer_schema(registry, config)
    assert found is not None, "a topic with an encoding has a schema"
    text = evolved(schema, found.text, topic=topic) if evolve else None
    # Before anything is registered: a version whose rows do not fit would stay.
    columns = check_typed_columns(schema, text or found.text, topic=topic)
    if text is None:
        return columns, found
    try:
        made = registry.register(subject, text, after=found.version)
    except IncompatibleSchemaError as error:
        raise InvalidOptionError(
            f"Option evolve: the columns of the DataFrame make no compatible version of "
            f"the schema of topic {topic}: {error.message}"
        ) from error
    except NotPermittedError as error:
        raise InvalidOptionError(
            f"Option evolve: the schema of topic {topic} takes no new version, which the columns "
            f"of the DataFrame need: {error.message} Set its mode to READWRITE, or leave those "
            "columns out."
        ) from error
    return columns, WriterSchema(found.encoding, made.schema_id, text, made.version)
