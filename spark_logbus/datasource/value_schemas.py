"""The schemas of the topics that a read selects, found on the driver.

The columns of a DataFrame are fixed when it is made, and the schemas that values are written with
go on to change. So the columns that Spark asks for decide: a read takes the newest version of the
schema that gives these columns, and what is known of all other versions goes with it to the tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_logbus.client.schemas.topic import ValueSchemas, find_value_schemas
from spark_logbus.datasource.columns import ColumnChoice, check_columns, full_schema, typed_schema
from spark_logbus.datasource.input_partition import NO_SCHEMAS
from spark_logbus.datasource.options import SchemaOptions, ValueOptions
from spark_logbus.errors import (
    InvalidOptionError,
    LogbusError,
    UnknownTopicError,
    UnsupportedSchemaError,
)
from spark_logbus.offsets.snapshot import Snapshot, describe_topics
from spark_logbus.retry import RetryPolicy
from spark_logbus.topic_schemas import VALUE_ENCODING

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_logbus.schemas.registry import SchemaRegistry

Configs = Mapping[str, Mapping[str, str]]


def look_up_schema(options: SchemaOptions) -> StructType:
    """The columns of a read without ``.schema(...)``: what the topics have that are there now.

    Raises InvalidOptionError for topics that cannot be read together, UnknownTopicError where
    options need a schema, CoordinationError.
    """
    retry_policy = RetryPolicy().at_first_contact()
    return retry_policy.retry("Looking up the topics", lambda: _looked_up(options))


def _looked_up(options: SchemaOptions) -> StructType:
    # Imported here: whoever gives a schema needs none of it.
    from spark_logbus.client import Admin
    from spark_logbus.selection import named_topics
    from spark_logbus.spark.worker import driver_cluster

    # Brokers know which topics have a schema, and their client is kept: of plain topics nothing
    # else is asked.
    found = describe_topics(Admin(driver_cluster(options.zookeeper)), options.selection, ends=False)
    missing = sorted({*(named_topics(options.selection) or ())} - found.keys())
    if missing and options.values.given:
        raise UnknownTopicError(
            f"The cluster has no topic {', '.join(missing)}, whose schema the options columns, "
            "flatten, schemaVersion and onUndecodable depend on. Create the topic first, or "
            "check the option zookeeper."
        )
    configs = {name: topic.config for name, topic in found.items()}
    if not has_schemas(configs):
        return common_schema({}, options)

    from spark_logbus.schemas.registry import SchemaRegistry
    from spark_logbus.zookeeper import Session

    with Session(options.zookeeper, client_name="spark-schema", expects_cluster=True) as session:
        schemas = find_schemas(SchemaRegistry(session), configs, options.values)
    return common_schema(schemas, options)


def find_schemas(
    registry: SchemaRegistry,
    configs: Configs,
    options: ValueOptions,
    *,
    known: Mapping[str, ValueSchemas] = NO_SCHEMAS,
) -> dict[str, ValueSchemas]:
    """Returns the schemas by topic. Keeps entries of ``known`` and adds versions they lack.

    Raises InvalidOptionError for topics of which some have a schema and some have none, and for
    versions and subjects that there are not, CoordinationError.
    """
    # Imported here: reads of plain topics need none of it.
    from spark_logbus.schemas.errors import UnknownSubjectError, UnknownVersionError

    typed = sorted(topic for topic in configs if VALUE_ENCODING in configs[topic])
    plain = sorted(configs.keys() - typed)
    if typed and plain:
        raise InvalidOptionError(
            f"The topic {typed[0]} has a schema and {plain[0]} has none; read them apart."
        )
    found: dict[str, ValueSchemas] = {}
    for topic in typed:
        try:
            schemas = find_value_schemas(
                registry, topic, configs[topic], version=options.version, known=known.get(topic)
            )
        except UnknownVersionError as error:
            raise InvalidOptionError(
                f"Option schemaVersion, of the topic {topic}: {error.message}"
            ) from error
        except UnknownSubjectError as error:
            raise UnknownSubjectError(
                f"The schema of the topic {topic} is gone. {error.message} Register it again with "
                "the id that it had, in the mode IMPORT."
            ) from error
        assert schemas is not None, "a topic with an encoding has a subject"
        found[topic] = schemas
    return found


def has_schemas(configs: Configs) -> bool:
    """True if any of the topics has a schema."""
    return any(VALUE_ENCODING in config for config in configs.values())


def common_schema(schemas: Mapping[str, ValueSchemas], options: SchemaOptions) -> StructType:
    """The columns of topics that are read together. Raises InvalidOptionError if they differ."""
    if not schemas:
        _refuse_needless(options.values)
        return full_schema(include_headers=options.include_headers)
    offered = {}
    for topic, each in schemas.items():
        try:
            offered[topic] = _offered(
                each.reader, options.values, include_headers=options.include_headers
            )
        except UnsupportedSchemaError as error:
            raise InvalidOptionError(
                f"The topic {topic} cannot be read under {each.reader_name}: {error.message} "
                "Choose another one with the option schemaVersion."
            ) from error
    [first, *others] = offered
    for other in others:
        if offered[other] != offered[first]:
            raise InvalidOptionError(
                f"The topics {first} and {other} have schemas with different columns; read them "
                "apart, or choose columns that both have with the option columns."
            )
    return offered[first]


def _offered(schema: str, values: ValueOptions, *, include_headers: bool) -> StructType:
    # Imported here: a stream of a topic without a schema starts sooner.
    from avro_columns.values.arrow_types import arrow_type
    from spark_logbus.datasource.value_types import spark_type
    from spark_logbus.schemas.avro_errors import logbus_errors

    with logbus_errors:
        arrow = arrow_type(schema)
    return typed_schema(spark_type(arrow), values, include_headers=include_headers)


def _refuse_needless(options: ValueOptions) -> None:
    if options.given:
        raise InvalidOptionError(
            "The options columns, flatten, schemaVersion and onUndecodable are for topics with a "
            "schema, and these have none; leave them out."
        )


class ReadSchemas:
    """The schemas of one read, whose columns Spark has fixed. Not thread-safe.

    A topic is read under one schema from its first planning on, whatever is registered later; one
    that was created anew is another topic.
    """

    def __init__(self, columns: ColumnChoice, *, include_headers: bool) -> None:
        self._columns = columns
        self._include_headers = include_headers
        self._known: dict[str, ValueSchemas] = {}  # by topic id

    def known(self, seen: Snapshot, topics: Iterable[str]) -> dict[str, ValueSchemas] | None:
        """Returns the last answers for those ``topics`` that are still there; None if there is one
        that was not met yet."""
        found = {}
        for topic in sorted({*topics} & seen.configs.keys()):
            known = self._known.get(seen.topic_ids[topic])
            if known is None:
                return None
            found[topic] = known
        return found

    def find(
        self, seen: Snapshot, registry: Callable[[], SchemaRegistry]
    ) -> dict[str, ValueSchemas]:
        """Returns the schemas of topics that have one, for the tasks. Call it after the ends of
        what they read are known: then it has all schemas that they meet.

        Raises InvalidOptionError for topics that do not have the columns, CoordinationError.
        """
        columns, headers = self._columns, self._include_headers
        if not seen.configs:
            return {}  # they are away, or a pattern has none yet
        if not has_schemas(seen.configs):
            _refuse_needless(columns.values)
            _check(columns.schema, full_schema(include_headers=headers), [*seen.configs])
            return {}
        known = {
            topic: self._known[topic_id]
            for topic, topic_id in seen.topic_ids.items()
            if topic_id in self._known
        }
        found = find_schemas(registry(), seen.configs, columns.values, known=known)
        for topic in found.keys() - known.keys():
            found[topic] = self._as_columns(topic, found[topic])
        self._known = {seen.topic_ids[topic]: each for topic, each in found.items()}
        return found

    def _as_columns(self, topic: str, schemas: ValueSchemas) -> ValueSchemas:
        """Returns the schemas for a read under the newest one that has the columns."""
        # Spark has chosen from them.
        values = replace(self._columns.values, columns=None)
        assert schemas.reader_id is not None, "it was found"
        newest_first = [schemas.reader_id]
        if values.version is None:
            newest_first += sorted(schemas.writers, key=schemas.versions.__getitem__, reverse=True)
        problem: LogbusError | None = None
        for schema_id in newest_first:
            try:
                offered = _offered(
                    schemas.writers[schema_id], values, include_headers=self._include_headers
                )
                _check(self._columns.schema, offered, [topic])
            except (InvalidOptionError, UnsupportedSchemaError) as error:
                problem = problem or error
            else:
                return schemas.read_under(schema_id)
        assert problem is not None
        raise problem


def _check(schema: StructType, offered: StructType, topics: Sequence[str]) -> None:
    """Raises InvalidOptionError unless the topics' columns that are offered have those of
    ``schema``."""
    try:
        check_columns(schema, offered)
    except InvalidOptionError as error:
        raise InvalidOptionError(
            f"{error.message} So it is with {', '.join(sorted(topics)[:10])}; topics with other "
            "columns are read apart, and so is a topic that was created anew with others."
        ) from error
