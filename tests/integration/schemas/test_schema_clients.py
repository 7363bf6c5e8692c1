"""Confluent's own client and serializers, with nothing changed but the URL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    AssociationCreateOrUpdateRequest,
    ConfigCompatibilityLevel,
    Metadata,
    MetadataProperties,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    ServerConfig,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext

from spark_logbus.schemas.registry import SchemaRegistry
from spark_logbus.schemas.rest.server import RegistryServer
from tests.servers.registry import serving
from tests.servers.zookeeper import session

ORDER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "doc": "What was bought.",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }
)
LATER = json.dumps(
    {
        **json.loads(ORDER),
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "price", "type": "double", "default": 1.5},
        ],
    }
)
VALUE = SerializationContext("orders", MessageField.VALUE)


@pytest.fixture
def server(chroot: str) -> Iterator[RegistryServer]:
    with serving(chroot) as started:
        yield started


@pytest.fixture
def connect(server: RegistryServer) -> Iterator[Callable[[], Any]]:
    made: list[Any] = []

    def client() -> Any:
        made.append(SchemaRegistryClient({"url": server.url, "max.retries": 0}))
        return made[-1]

    yield client
    for each in made:
        each._rest_client.session.close()


def refusal(act: Callable[[], object]) -> tuple[int, int]:
    with pytest.raises(SchemaRegistryError) as refused:
        act()
    return refused.value.http_status_code, refused.value.error_code


def test_records_are_written_and_read_with_schemas_of_the_registry(
    connect: Callable[[], Any], chroot: str
) -> None:
    serializer = AvroSerializer(connect(), ORDER)
    data = serializer({"id": 7, "note": "soon"}, VALUE)
    assert data[:5] == b"\x00\x00\x00\x00\x01"
    assert AvroDeserializer(connect())(data, VALUE) == {"id": 7, "note": "soon"}
    assert AvroDeserializer(connect(), LATER)(data, VALUE) == {"id": 7, "price": 1.5}
    again = AvroSerializer(connect(), ORDER, conf={"auto.register.schemas": False})
    assert again({"id": 7, "note": "soon"}, VALUE) == data
    with session(chroot) as opened:
        registry = SchemaRegistry(opened)
        assert registry.schema_ids("orders-value") == [1]
        assert registry.avro(1)["doc"] == "What was bought."


def test_a_schema_that_evolves(connect: Callable[[], Any]) -> None:
    client = connect()
    AvroSerializer(client, ORDER)({"id": 1, "note": None}, VALUE)
    data = AvroSerializer(client, LATER)({"id": 2, "price": 9.0}, VALUE)
    assert data[:5] == b"\x00\x00\x00\x00\x02"
    assert AvroDeserializer(client, ORDER)(data, VALUE) == {"id": 2, "note": None}
    latest = AvroSerializer(
        client, None, conf={"auto.register.schemas": False, "use.latest.version": True}
    )
    assert latest({"id": 3, "price": 1.0}, VALUE)[:5] == b"\x00\x00\x00\x00\x02"
    broken = json.dumps({**json.loads(ORDER), "fields": [{"name": "new", "type": "int"}]})
    refused = refusal(lambda: AvroSerializer(client, broken)({"new": 1}, VALUE))
    assert refused == (409, 409)


def test_schemas_with_references(connect: Callable[[], Any]) -> None:
    client = connect()
    client.register_schema("order", Schema(ORDER, "AVRO"))
    basket = json.dumps(
        {
            "type": "record",
            "name": "shop.Basket",
            "fields": [{"name": "orders", "type": {"type": "array", "items": "shop.Order"}}],
        }
    )
    schema = Schema(basket, "AVRO", [SchemaReference("shop.Order", "order", 1)])
    value = {"orders": [{"id": 1, "note": None}, {"id": 2, "note": "x"}]}
    data = AvroSerializer(client, schema)(value, VALUE)
    assert AvroDeserializer(connect())(data, VALUE) == value
    found = connect().get_schema(2)
    assert [(each.name, each.subject, each.version) for each in found.references] == [
        ("shop.Order", "order", 1)
    ]
    assert client.get_referenced_by("order", 1) == [2]
    assert refusal(lambda: client.delete_subject("order"))[1] == 42206


def test_every_call_of_the_client(connect: Callable[[], Any]) -> None:
    client = connect()
    order, later = Schema(ORDER, "AVRO"), Schema(LATER, "AVRO")
    assert client.get_subjects() == []
    assert client.register_schema("a", order) == 1
    assert client.register_schema("a", later, normalize_schemas=True) == 2
    assert client.register_schema_full_response("b", order).schema_id == 1
    assert connect().get_schema(1).schema_type == "AVRO"
    assert json.loads(connect().get_schema(1).schema_str) == json.loads(ORDER)
    assert client.get_schema_types() == ["AVRO"]
    assert client.get_subjects_by_schema_id(1) == ["a", "b"]
    versions = client.get_schema_versions(1)
    assert [(each.subject, each.version) for each in versions] == [("a", 1), ("b", 1)]
    found = connect().lookup_schema("a", order)
    assert (found.subject, found.version, found.schema_id) == ("a", 1, 1)
    assert client.get_subjects(subject_prefix="b") == ["b"]
    assert client.get_versions("a") == [1, 2]
    assert client.get_latest_version("a").version == 2
    assert client.get_version("a", 1).schema_id == 1
    assert client.test_compatibility("a", order)
    assert client.test_compatibility("a", order, version=1)
    wrong = Schema('"int"', "AVRO")
    assert not client.test_compatibility_all_versions("a", wrong)
    assert client.get_compatibility() == "BACKWARD"
    client.set_compatibility("a", "NONE")
    assert client.get_compatibility("a") == "NONE"
    assert client.get_config("a").compatibility_level == "NONE"
    client.delete_config("a")
    assert refusal(lambda: client.get_compatibility("a")) == (404, 40408)
    assert client.get_global_mode() == "READWRITE"
    client.update_mode("a", "READONLY")
    assert client.get_mode("a") == "READONLY"
    assert refusal(lambda: client.delete_version("a", 1)) == (422, 42205)
    client.delete_mode("a")
    client.update_global_mode("READWRITE")
    assert client.get_contexts() == ["."]
    assert client.delete_version("a", 1) == 1
    assert client.delete_version("a", 1, permanent=True) == 1
    assert client.delete_subject("a") == [2]
    assert client.get_subjects(deleted=True) == ["a", "b"]
    assert client.delete_subject("a", permanent=True) == [2]
    assert refusal(lambda: connect().get_schema(2)) == (404, 40403)
    assert refusal(lambda: client.get_versions("a")) == (404, 40401)
    assert refusal(lambda: client.get_version("b", 5)) == (404, 40402)
    assert topic_subject_name_strategy(VALUE, None) == "orders-value"


def test_what_the_client_can_ask_for_and_is_not_kept_is_told(connect: Callable[[], Any]) -> None:
    client = connect()
    schema = Schema(ORDER, "AVRO")
    client.register_schema("a", schema)
    owner = MetadataProperties({"owner": "me"})
    kept = Metadata(tags=None, properties=owner, sensitive=None)
    with_metadata = Schema(ORDER, "AVRO", metadata=kept)
    for ask, told in (
        (lambda: client.get_latest_with_metadata("a", {"owner": "me"}), (404, 40403)),
        (lambda: client.get_latest_with_metadata("none", {"owner": "me"}), (404, 40401)),
        (lambda: client.get_schema_by_guid("3b241101-e2bb-4255-8caf-4136c566a962"), (404, 40403)),
        (lambda: client.register_schema("b", with_metadata), (422, 42201)),
        (lambda: client.register_schema("b", Schema("{}", "JSON")), (422, 42201)),
        (lambda: client.register_schema(":.other:b", schema), (422, 42208)),
        (lambda: client.set_config("a", ServerConfig(default_metadata=kept)), (422, 42205)),
        (lambda: client.update_mode("a", "FORWARD"), (422, 42204)),
        (lambda: client.create_association(AssociationCreateOrUpdateRequest("a")), (422, 42212)),
        (lambda: client.delete_associations("a"), (404, 40410)),
    ):
        assert refusal(ask) == told
    assert client.get_associations_by_resource_name("a", "-") == []
    assert client.get_subjects() == ["a"]


def test_parameters_of_todays_client(connect: Callable[[], Any]) -> None:
    client = connect()
    client.register_schema("order", Schema(ORDER, "AVRO"))
    text = '{"type": "record", "name": "Basket", "fields": [{"name": "o", "type": "shop.Order"}]}'
    basket = Schema(text, "AVRO", [SchemaReference("shop.Order", "order", 1)])
    assert client.register_schema(":.:basket", basket) == 2
    whole = json.loads(connect().get_schema(2, fmt="resolved").schema_str)
    assert whole["fields"][0]["type"]["fields"] == json.loads(ORDER)["fields"]
    assert connect().get_schema(2, subject_name="basket", reference_format="qualified") is not None
    assert client.get_subjects(subject_prefix=":*:") == ["basket", "order"]
    assert client.get_contexts(offset=1, limit=5) == []
    strict = ServerConfig(compatibility=ConfigCompatibilityLevel.FULL)
    assert client.set_config("order", strict) == {"compatibility": "FULL"}
    assert client.get_config("order").compatibility_level == "FULL"
    assert client.delete_subject("basket") == [1]
    assert client.get_subjects(deleted=True) == ["basket", "order"]
    assert client.get_versions("basket", deleted=True) == [1]
    assert client.get_version("basket", 1, deleted=True).schema_id == 2
    assert client.lookup_schema("basket", basket, deleted=True).version == 1
    assert client.get_referenced_by("order", 1) == []
    assert client.update_global_mode("READONLY_OVERRIDE") == "READONLY_OVERRIDE"
    assert refusal(lambda: connect().register_schema("basket", basket)) == (422, 42205)
