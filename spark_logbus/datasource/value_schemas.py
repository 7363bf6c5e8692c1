"""The schemas of the topics that a read selects, found on the driver.

The columns of a DataFrame are fixed when it is made, and the schemas that values are written with
go on to change. So the columns that Spark asks for decide: a read takes the newest version of the
schema that gives these columns, and what is known of all other versions goes with it to the tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_logbus.client.value_schemas import ValueSchemas, find_value_schemas
from spark_logbus.datasource.columns import ColumnChoice, check_columns, full_schema, typed_schema
from spark_logbus.datasource.options import SchemaOptions, ValueOptions
from spark_logbus.errors import InvalidOptionError, UnknownTopicError
from spark_logbus.retry import RetryPolicy
from spark_logbus.selection import matching_topics
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
    patience = RetryPolicy().at_first_contact()
    return patience.retry("Looking up the topics", lambda: _looked_up(options))


def _looked_up(options: SchemaOptions) -> StructType:
    # Imported here: whoever gives a schema needs none of it.
    from spark_logbus.coordination.topics import TopicRegistry
    from spark_logbus.schemas.registry import SchemaRegistry
    from spark_logbus.selection import named_topics
    from spark_logbus.zookeeper import Session

    with Session(options.zookeeper, client_name="spark-schema", expects_cluster=True) as session:
        topics = TopicRegistry(session)
        named = named_topics(options.selection)
        found = topics.all() if named is None else topics.some(named)
        chosen = matching_topics(options.selection, found)
        missing = sorted({*(named or ())} - {*chosen})
        if missing and options.values.given:
            raise UnknownTopicError(
                f"The cluster has no topic {', '.join(missing)}, whose schema the options columns, "
                "flatten, schemaVersion and onUndecodable depend on. Create the topic first, or "
                "check the option zookeeper."
            )
        configs = {name: found[name].config for name in chosen}
        schemas = find_schemas(SchemaRegistry(session), configs, options.values)
    return common_schema(schemas, options)


def find_schemas(
    registry: SchemaRegistry, configs: Configs, options: ValueOptions
) -> dict[str, ValueSchemas]:
    """Of each topic with a schema, by name. Raises InvalidOptionError for topics of which some have
    a schema and some have none."""
    found: dict[str, ValueSchemas] = {}
    for topic in sorted(configs):
        schemas = find_value_schemas(registry, topic, configs[topic], version=options.version)
        if schemas is not None:
            found[topic] = schemas
    plain = sorted(set(configs) - set(found))
    if found and plain:
        raise InvalidOptionError(
            f"The topic {next(iter(found))} has a schema and {plain[0]} has none; read them apart."
        )
    return found


def has_schemas(configs: Configs) -> bool:
    """True if any of the topics has a schema."""
    return any(VALUE_ENCODING in config for config in configs.values())


def common_schema(schemas: Mapping[str, ValueSchemas], options: SchemaOptions) -> StructType:
    """The columns of topics that are read together. Raises InvalidOptionError if they differ."""
    if not schemas:
        _refuse_needless(options.values)
        return full_schema(include_headers=options.include_headers)
    offered = {
        topic: _offered(each.reader, options.values, include_headers=options.include_headers)
        for topic, each in schemas.items()
    }
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
    from spark_logbus.datasource.value_types import spark_type
    from spark_logbus.schemas.columns.arrow_types import arrow_type

    return typed_schema(spark_type(arrow_type(schema)), values, include_headers=include_headers)


def _refuse_needless(options: ValueOptions) -> None:
    if options.given:
        raise InvalidOptionError(
            "The options columns, flatten, schemaVersion and onUndecodable are for topics with a "
            "schema, and these have none; leave them out."
        )


class ReadSchemas:
    """The schemas of one read, whose columns Spark has fixed. Not thread-safe.

    A topic is read under one schema from its first planning on, whatever is registered later.
    """

    def __init__(self, columns: ColumnChoice, *, include_headers: bool) -> None:
        self._columns = columns
        self._include_headers = include_headers
        self._readers: dict[str, str] = {}

    def find(
        self, configs: Configs, registry: Callable[[], SchemaRegistry]
    ) -> dict[str, ValueSchemas]:
        """Those of the topics that have one, for the tasks; to be asked after the ends of what
        they read are known, so that it has all schemas that they meet.

        Raises InvalidOptionError for topics that do not have the columns, CoordinationError.
        """
        columns, headers = self._columns, self._include_headers
        if not configs:
            return {}  # they are away, or a pattern has none yet
        if not has_schemas(configs):
            _refuse_needless(columns.values)
            check_columns(columns.schema, full_schema(include_headers=headers))
            return {}
        found = find_schemas(registry(), configs, columns.values)
        return {
            topic: replace(each, reader=self._reader(topic, each)) for topic, each in found.items()
        }

    def _reader(self, topic: str, schemas: ValueSchemas) -> str:
        """The newest schema of the topic that has the columns."""
        if topic not in self._readers:
            values = self._columns.values
            newest_first = [schemas.reader]
            if values.version is None:
                newest_first += reversed(list(schemas.writers.values()))
            problem: InvalidOptionError | None = None
            for text in newest_first:
                try:
                    offered = _offered(
                        text,
                        # Spark has chosen from them.
                        replace(values, columns=None),
                        include_headers=self._include_headers,
                    )
                    check_columns(self._columns.schema, offered)
                except InvalidOptionError as error:
                    problem = problem or error
                else:
                    self._readers[topic] = text
                    break
            else:
                assert problem is not None
                raise problem
        return self._readers[topic]
