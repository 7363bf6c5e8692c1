"""Topics with schemas on a real broker: created, described, altered, and held to their schemas."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_logbus.client import Admin, Cluster, Producer
from spark_logbus.client.schemas.topic import WriterSchema
from spark_logbus.errors import (
    ConfigError,
    SchemaMismatchError,
    TopicExistsError,
    UnknownSchemaIdError,
    UnsupportedSchemaError,
)
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.protocol import Api, AppendPartition, AppendResponse, StageRequest
from spark_logbus.record.rows.arrow import encode
from spark_logbus.schemas.errors import IncompatibleSchemaError, UnknownSubjectError
from spark_logbus.schemas.registry import SchemaAdministration, SchemaRegistry
from spark_logbus.topic_schemas import Encoding
from spark_logbus.zookeeper import Session
from tests.builders.arrow_batches import arrow_batch
from tests.builders.record_batches import record_batch
from tests.servers.broker import broker_process, connect, create_topic, failure
from tests.servers.command import Command
from tests.servers.wire import Wire
from tests.servers.zookeeper import session

FLIGHT: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": "from", "type": "string"}, {"name": "miles", "type": "int"}],
}
LATER = {**FLIGHT, "fields": [*FLIGHT["fields"], {"name": "n", "type": "int", "default": 0}]}
NARROWER = {**FLIGHT, "fields": [{"name": "other", "type": "string"}]}
LIST = {
    "type": "record",
    "name": "L",
    "fields": [{"name": "next", "type": ["null", "L"], "default": None}],
}


@pytest.fixture
def broker(tmp_path: Path, chroot: str) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path, chroot) as broker:
        yield broker


@pytest.fixture
def admin(broker: BrokerProcess, chroot: str) -> Iterator[Admin]:
    with Cluster.from_zookeeper(chroot) as cluster:
        yield Admin(cluster)


@pytest.fixture
def live(chroot: str) -> Iterator[Session]:
    with session(chroot) as live:
        yield live


@pytest.fixture
def registry(broker: BrokerProcess, live: Session) -> SchemaRegistry:
    return SchemaRegistry(live)


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[Wire]:
    with connect(broker) as wire:
        yield wire


def with_id(schema_id: int) -> memoryview:
    return encode(arrow_batch([b"v"]), schema_id=schema_id)


def refusal(wire: Wire, topic: str, data: memoryview) -> Exception:
    return failure(wire.append(topic, 0, data).results[0].error)


# -- creating ---------------------------------------------------------------------------------


def test_a_topic_is_created_with_its_schemas(admin: Admin, registry: SchemaRegistry) -> None:
    made = admin.create_topic(
        "flights", partitions=1, value_schema=FLIGHT, key_schema='"string"', key_subject="codes"
    )
    assert made.config == {
        "value.encoding": "columns",
        "value.subject": "flights-value",
        "key.encoding": "avro",
        "key.subject": "codes",
    }
    assert registry.avro(registry.schema_ids("flights-value")[0])["name"] == "Flight"
    assert registry.avro(registry.schema_ids("codes")[0]) == "string"
    key, value = admin.describe_schemas(["flights"])["flights"]
    assert (key.of, key.encoding, key.subject, key.version) == ("key", "avro", "codes", 1)
    assert (value.of, value.encoding, value.version) == ("value", "columns", 1)
    assert [value.schema_id] == registry.schema_ids("flights-value")


def test_the_same_schema_again_is_no_new_version(admin: Admin, registry: SchemaRegistry) -> None:
    text = json.dumps(FLIGHT)
    registry.register("s", text)
    for topic in ("a", "b"):
        admin.create_topic(
            topic, partitions=1, value_schema=text, value_encoding="avro", value_subject="s"
        )
    assert registry.versions("s") == [1]
    admin.create_topic("c", partitions=1, value_schema=LATER, value_subject="s")
    assert registry.versions("s") == [1, 2]


def test_an_encoding_without_a_schema_needs_a_subject_with_one(
    admin: Admin, registry: SchemaRegistry, wire: Wire
) -> None:
    with pytest.raises(UnknownSubjectError, match=r"'t-value'.*register one"):
        admin.create_topic("t", partitions=1, value_encoding="avro")
    with pytest.raises(ConfigError, match=r"value.subject of the topic 't' is 't-value'"):
        create_topic(wire, "t", config={"value.encoding": "avro"})
    registry.register("t-value", json.dumps(FLIGHT))
    made = admin.create_topic("t", partitions=1, config={"value.encoding": "avro"})
    assert made.config == {"value.encoding": "avro", "value.subject": "t-value"}


def test_a_schema_that_is_not_for_a_topic_is_never_registered(
    admin: Admin, registry: SchemaRegistry
) -> None:
    for encoding in ("columns", "avro"):
        with pytest.raises(UnsupportedSchemaError):
            admin.create_topic("t", partitions=1, value_schema=LIST, value_encoding=encoding)
    with pytest.raises(UnsupportedSchemaError):
        admin.create_topic("t", partitions=1, value_schema=FLIGHT, key_schema=LIST)
    compacted = {"cleanup.policy": "compact"}
    with pytest.raises(ConfigError, match="cannot be compacted"):
        admin.create_topic("t", partitions=1, config=compacted, value_schema=FLIGHT)
    with pytest.raises(ConfigError, match="keys cannot be columns"):
        admin.create_topic("t", partitions=1, key_schema=FLIGHT, key_encoding="columns")
    with pytest.raises(ConfigError, match="given twice"):
        admin.create_topic(
            "t", partitions=1, config={"value.encoding": "avro"}, value_encoding="columns"
        )
    admin.create_topic("t", partitions=1)
    with pytest.raises(TopicExistsError):
        admin.create_topic("t", partitions=1, value_schema=FLIGHT)
    admin.create_topic("t", partitions=1, value_schema=FLIGHT, if_not_exists=True)
    assert registry.subjects() == []


def test_a_schema_that_breaks_its_subject_creates_no_topic(
    admin: Admin, registry: SchemaRegistry
) -> None:
    registry.register("t-value", json.dumps(FLIGHT))
    with pytest.raises(IncompatibleSchemaError):
        admin.create_topic("t", partitions=1, value_schema=NARROWER)
    assert admin.topics() == []


def test_encodings_and_subjects_cannot_be_altered(admin: Admin) -> None:
    admin.create_topic("t", partitions=1, value_schema=FLIGHT)
    admin.create_topic("plain", partitions=1)
    for topic, put, drop in (
        ("t", {"value.encoding": "avro"}, []),
        ("t", {"value.subject": "other"}, []),
        ("t", {}, ["value.encoding", "value.subject"]),
        ("plain", {"value.encoding": "avro", "value.subject": "t-value"}, []),
        ("t", {"cleanup.policy": "compact"}, []),
    ):
        with pytest.raises(ConfigError):
            admin.alter_topic(topic, put=put, drop=drop)
    assert admin.alter_topic("t", put={"retention.ms": 5_000}).config["value.encoding"] == "columns"


# -- appending --------------------------------------------------------------------------------


def test_only_record_batches_with_an_id_of_the_subject_are_taken(
    admin: Admin, registry: SchemaRegistry, wire: Wire
) -> None:
    other = registry.register("other", '"string"').schema_id
    admin.create_topic("t", partitions=1, value_schema=FLIGHT, value_encoding="avro")
    (schema_id,) = registry.schema_ids("t-value")
    for taken in (schema_id, 0):
        assert wire.append("t", 0, with_id(taken)).results[0].error is None
    error = refusal(wire, "t", with_id(other))
    assert isinstance(error, UnknownSchemaIdError)
    assert all(part in str(error) for part in ("'t'", "'t-value'", str(other), "Register"))
    later = registry.register("t-value", json.dumps(LATER)).schema_id
    assert wire.append("t", 0, with_id(later)).results[0].error is None


def test_record_batches_of_another_form_are_refused(
    admin: Admin, registry: SchemaRegistry, wire: Wire
) -> None:
    admin.create_topic("columns", partitions=1, value_schema=FLIGHT)
    admin.create_topic("plain", partitions=1)
    (schema_id,) = registry.schema_ids("columns-value")
    assert isinstance(refusal(wire, "columns", with_id(schema_id)), SchemaMismatchError)
    assert isinstance(refusal(wire, "columns", record_batch()), SchemaMismatchError)
    assert isinstance(refusal(wire, "plain", with_id(schema_id)), SchemaMismatchError)
    assert wire.append("plain", 0, record_batch()).results[0].error is None


def test_a_producer_gets_the_typed_error(
    admin: Admin, registry: SchemaRegistry, chroot: str
) -> None:
    admin.create_topic("t", partitions=1, value_schema=FLIGHT, value_encoding="avro")
    gone = {"t": WriterSchema(Encoding.AVRO, 1_000, json.dumps(FLIGHT))}
    row = pa.Table.from_pylist([{"from": "EWR", "miles": 1_400}])
    with Cluster.from_zookeeper(chroot) as cluster, Producer(cluster, schemas=gone) as producer:
        (sent,) = producer.send_arrow("t", row)
        with pytest.raises(UnknownSchemaIdError, match="1000"):
            sent.result(60)


def test_what_is_staged_has_to_fit_the_topic_too(
    admin: Admin, registry: SchemaRegistry, wire: Wire
) -> None:
    admin.create_topic("t", partitions=1, value_schema=FLIGHT, value_encoding="avro")
    data = with_id(1_000)
    request = StageRequest(30_000, [AppendPartition("t", 0, len(data))])
    wire.send(Api.STAGE, request, data)
    (result,) = wire.answer(Api.STAGE, AppendResponse).results
    assert isinstance(failure(result.error), UnknownSchemaIdError)


def test_ids_of_deleted_versions_stay_accepted(
    admin: Admin, registry: SchemaRegistry, live: Session, wire: Wire
) -> None:
    admin.create_topic("t", partitions=1, value_schema=FLIGHT, value_encoding="avro")
    (first,) = registry.schema_ids("t-value")
    second = registry.register("t-value", json.dumps(LATER)).schema_id
    administration = SchemaAdministration(live)
    administration.delete_version("t-value", 1)
    assert wire.append("t", 0, with_id(first)).results[0].error is None, "soft, and never seen"
    administration.delete_version("t-value", 1, permanent=True)
    assert wire.append("t", 0, with_id(first)).results[0].error is None, "seen before"
    assert wire.append("t", 0, with_id(second)).results[0].error is None


# -- the command line -------------------------------------------------------------------------


def test_topics_with_schemas_from_the_command_line(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "flight.avsc"
    file.write_text(json.dumps(FLIGHT))
    topic = f"flights-{uuid.uuid4().hex}"
    assert command("topics", "create", topic, "--value-schema", str(file)).code == 0
    described = json.loads(command("topics", "describe", topic, "--json").out)
    value = described["schemas"]["value"]
    assert (value["encoding"], value["subject"], value["version"]) == (
        "columns",
        f"{topic}-value",
        1,
    )
    assert value["id"] > 0
    assert described["settings"]["value.encoding"] == {"value": "columns", "source": "topic"}
    assert f"{topic}-value" in command("topics", "describe", topic).out
    refused = command("topics", "alter", topic, "--set", "value.encoding=avro").refusal
    assert "create another topic" in refused
    keyed = f"{topic}-2"
    done = command(
        "topics", "create", keyed, "--value-encoding", "avro", "--value-subject",
        f"{topic}-value", "--key-schema", "-", stdin=b'"string"',
    )  # fmt: skip
    assert done.code == 0
    described = json.loads(command("topics", "describe", keyed, "--json").out)
    assert set(described["schemas"]) == {"key", "value"}
    assert described["schemas"]["value"]["id"] == value["id"]
