"""The examples of Confluent's documentation of its Schema Registry, replayed in their order.

They come from four places, which the sections below are named after: "API Usage Examples", "Schema
Deletion Guidelines" and "API Reference" of docs.confluent.io, and the OpenAPI file of the registry,
which has the parameters and calls that the reference does not show. Beside the examples stand the
errors that are documented for their calls; and where nothing is said (an empty body, a version that
is not the next one), what Confluent's server does. What differs is in docs/schemas.md, and is here
as it is answered.

Each section starts with an empty registry, so the ids are the examples' own. What is between two
examples, and makes the next one possible, is marked ``meanwhile``. Whole bodies are compared; of an
error, its keys and code, because messages are free.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.servers.registry import V1, Rest, serving

DEFAULT = "application/vnd.schemaregistry+json"
JSON = "application/json"
ALL_THREE = f"{V1}, {DEFAULT}, {JSON}"  # the Accept of the reference's examples

STRING = {"schema": '{"type": "string"}'}
BYTES = {"schema": '{"type": "bytes"}'}
FIELDS = [{"type": "string", "name": "field1"}, {"type": "int", "name": "field2"}]
TEST = {"schema": json.dumps({"type": "record", "name": "test", "fields": FIELDS}, indent=2)}
TEST_TEXT = (
    '{"type":"record","name":"test","fields":'
    '[{"name":"field1","type":"string"},{"name":"field2","type":"int"}]}'
)
LONGER = {
    "schema": json.dumps(
        {"type": "record", "name": "test", "fields": [*FIELDS, {"name": "field3", "type": "int"}]}
    )
}
ITEM = {"schema": '{"type": "record", "name": "Item", "namespace": "shop", "fields": []}'}
TO_ITEM = [{"name": "shop.Item", "subject": "item", "version": 1}]
ORDER = {
    "schema": '{"type": "record", "name": "Order", "fields": [{"name": "item", '
    '"type": "shop.Item"}]}',
    "schemaType": "AVRO",
    "references": TO_ITEM,
}
ORDER_TEXT = '{"type":"record","name":"Order","fields":[{"name":"item","type":"shop.Item"}]}'
RESOLVED = (
    '{"type":"record","name":"Order","fields":[{"name":"item","type":'
    '{"type":"record","name":"Item","namespace":"shop","fields":[]}}]}'
)


@dataclass(frozen=True)
class Example:
    """``answer`` is the whole body, or says if it is right. ``headers`` are sent."""

    request: str
    answer: Any
    body: Any = None
    status: int = 200
    content_type: str = V1
    headers: dict[str, str] = field(default_factory=dict)


def meanwhile(request: str, body: Any = None) -> Example:
    """Makes a request that no example shows, and the next one needs."""
    return Example(request, lambda answer: True, body)


def refused(request: str, status: int, code: int, body: Any = None, **more: Any) -> Example:
    def is_error(answer: Any) -> bool:
        message = answer.get("message")
        return answer == {"error_code": code, "message": message} and bool(message)

    return Example(request, is_error, body, status, **more)


def in_any_order(*items: Any) -> Callable[[Any], bool]:
    """Compares lists for which the documentation promises no order."""
    return lambda answer: sorted(answer, key=str) == sorted(items, key=str)


def incompatible(rule: str, level: str) -> Callable[[Any], bool]:
    """A verbose answer: the rule that is broken, and what was compared by which level."""

    def told(answer: Any) -> bool:
        first, *_, last = answer["messages"]
        return (
            set(answer) == {"is_compatible", "messages"}
            and answer["is_compatible"] is False
            and f"errorType:'{rule}'" in first
            and f"compatibility: '{level}'" in last
        )

    return told


def version(subject: str, number: int, schema_id: int, text: str, **more: Any) -> dict[str, Any]:
    return {"subject": subject, "version": number, "id": schema_id, "schema": text, **more}


def registered(schema_id: int, number: int) -> dict[str, int]:
    """The examples show the id only; the OpenAPI file's RegisterSchemaResponse has the version."""
    return {"id": schema_id, "version": number}


STRING_TEXT = '"string"'

USAGE = [
    Example("POST /subjects/Kafka-key/versions", registered(1, 1), STRING),
    Example("POST /subjects/Kafka-value/versions", registered(1, 1), STRING),
    Example("GET /subjects/Kafka-value/versions/latest", version("Kafka-value", 1, 1, STRING_TEXT)),
    Example("POST /subjects/Kafka2-value/versions", registered(1, 1), {"schema": STRING_TEXT}),
    meanwhile("DELETE /subjects/Kafka2-value"),
    meanwhile("DELETE /subjects/Kafka2-value?permanent=true"),
    Example("GET /subjects", in_any_order("Kafka-value", "Kafka-key")),
    Example("GET /schemas/ids/1", {"schema": STRING_TEXT}),
    Example("GET /schemas/ids/1/subjects", in_any_order("Kafka-value", "Kafka-key")),
    Example(
        "GET /schemas/ids/1/versions",
        in_any_order(
            {"subject": "Kafka-value", "version": 1}, {"subject": "Kafka-key", "version": 1}
        ),
    ),
    Example("GET /subjects/Kafka-value/versions", [1]),
    Example("GET /subjects/Kafka-value/versions/1", version("Kafka-value", 1, 1, STRING_TEXT)),
    meanwhile("POST /subjects/Kafka-value/versions", BYTES),
    Example("DELETE /subjects/Kafka-value/versions/1", 1),
    Example("DELETE /subjects/Kafka-value/versions/latest", 2),
    Example("POST /subjects/Kafka-value/versions", registered(1, 3), STRING),
    Example("GET /schemas/ids/1", {"schema": STRING_TEXT}),
    Example("POST /subjects/Kafka-key", version("Kafka-key", 1, 1, STRING_TEXT), STRING),
    Example(
        "POST /compatibility/subjects/Kafka-value/versions/latest", {"is_compatible": True}, STRING
    ),
    Example("GET /config", {"compatibilityLevel": "BACKWARD"}),
    Example("PUT /config", {"compatibility": "NONE"}, {"compatibility": "NONE"}),
    Example("POST /subjects/my-kafka-value/versions", registered(3, 1), TEST),
    Example(
        "PUT /config/my-kafka-value", {"compatibility": "BACKWARD"}, {"compatibility": "BACKWARD"}
    ),
    Example("GET /config/my-kafka-value", {"compatibilityLevel": "BACKWARD"}),
    Example("DELETE /subjects/Kafka-value", [3]),
    Example("GET /subjects", in_any_order("Kafka-key", "my-kafka-value")),
]

DELETION = [
    meanwhile("PUT /config", {"compatibility": "NONE"}),
    meanwhile("POST /subjects/Kafka-value/versions", STRING),
    Example("DELETE /subjects/Kafka-value", [1]),
    meanwhile("POST /subjects/Kafka-value/versions", BYTES),
    meanwhile("POST /subjects/Kafka-value/versions", TEST),
    Example("DELETE /subjects/Kafka-value/versions/2", 2),
    Example("DELETE /subjects/Kafka-value/versions/latest", 3),
    # A hard deletion takes two steps; each is refused where the other one is due.
    refused("DELETE /subjects/Kafka-value", 404, 40404),
    refused("DELETE /subjects/Kafka-value/versions/3", 404, 40406),
    Example("DELETE /subjects/Kafka-value/versions/3?permanent=true", 3),
    Example("DELETE /subjects/Kafka-value?permanent=true", [1, 2]),
    refused("DELETE /subjects/Kafka-value?permanent=true", 404, 40401),
    meanwhile("POST /subjects/Kafka-value/versions", STRING),
    refused("DELETE /subjects/Kafka-value?permanent=true", 404, 40405),
    refused("DELETE /subjects/Kafka-value/versions/1?permanent=true", 404, 40407),
    # What is soft-deleted is still to be had by its id, and on demand.
    Example("DELETE /subjects/Kafka-value", [1]),
    Example("GET /subjects", []),
    Example("GET /subjects?deleted=true", ["Kafka-value"]),
    Example("GET /subjects?deletedOnly=true", ["Kafka-value"]),
    refused("GET /subjects/Kafka-value/versions", 404, 40401),
    Example("GET /subjects/Kafka-value/versions?deleted=true", [1]),
    Example("GET /schemas/ids/4", {"schema": STRING_TEXT}),
    refused("POST /subjects/Kafka-value", 404, 40401, STRING),
    Example(
        "POST /subjects/Kafka-value?deleted=true",
        version("Kafka-value", 1, 4, STRING_TEXT, deleted=True),
        STRING,
    ),
    # Registered again, a schema has its id and the next version; deleted for good, neither.
    Example("POST /subjects/Kafka-value/versions", registered(4, 2), STRING),
    Example("GET /subjects/Kafka-value/versions?deleted=true", [2]),
    Example("DELETE /subjects/Kafka-value", [2]),
    Example("DELETE /subjects/Kafka-value?permanent=true", [2]),
    refused("GET /schemas/ids/4", 404, 40403),
    # The settings of a subject go with its last version.
    meanwhile("POST /subjects/Kafka-value/versions", STRING),
    meanwhile("PUT /config/Kafka-value", {"compatibility": "FULL"}),
    Example("DELETE /subjects/Kafka-value", [1]),
    refused("GET /config/Kafka-value", 404, 40408),
    meanwhile("POST /subjects/Kafka-value/versions", BYTES),
    meanwhile("PUT /config/Kafka-value", {"compatibility": "FULL"}),
    Example("DELETE /subjects/Kafka-value/versions/2", 2),
    refused("GET /config/Kafka-value", 404, 40408),
]

CONTENT_TYPES = [
    Example("GET /subjects", [], headers={"Accept": V1}),
    Example("GET /subjects", [], headers={"Accept": ALL_THREE}),
    Example("GET /subjects", [], headers={"Accept": DEFAULT}, content_type=DEFAULT),
    Example("GET /subjects", [], headers={"Accept": JSON}, content_type=JSON),
    Example("GET /subjects", [], headers={"Accept": "*/*"}),
    Example("GET /subjects", [], headers={"Accept": f"{V1}; q=0.9, {JSON}; q=0.5"}),
    Example(
        "GET /subjects", [], headers={"Accept": f"{V1}; q=0.5, {JSON}; q=0.9"}, content_type=JSON
    ),
    Example("GET /subjects", [], headers={"Accept": f"{JSON}, {V1}"}),
    Example(
        "GET /subjects", [], headers={"Accept": f"{V1};q=0, application/*;q=0.1"},
        content_type=DEFAULT,
    ),
    refused("GET /subjects", 406, 406, headers={"Accept": "text/html"}),
    refused("GET /subjects", 406, 406, headers={"Accept": f"{V1};q=0"}),
    refused("GET /subjects/none/versions", 404, 40401, headers={"Accept": JSON}, content_type=JSON),
    refused("GET /nothing", 404, 404, headers={"Accept": JSON}, content_type=JSON),
    *(
        Example(
            "POST /subjects/test/versions", registered(1, 1), STRING, headers={"Content-Type": kind}
        )
        for kind in (V1, DEFAULT, JSON, "application/octet-stream", f"{JSON}; charset=utf-8")
    ),
    refused(
        "POST /subjects/test/versions", 415, 415, STRING, headers={"Content-Type": "text/plain"}
    ),
]  # fmt: skip

ERRORS = [
    refused("POST /subjects/test/versions", 422, 42201, {}),
    refused("POST /subjects/test/versions", 422, 42201, {"schema": ""}),
    refused("POST /subjects/test/versions", 422, 422, b""),
    refused("POST /subjects/test/versions", 422, 422, b"null"),
    refused("POST /subjects/test/versions", 400, 400, b"[]"),
    refused("POST /subjects/test/versions", 400, 400, b"{"),
    refused("PUT /config", 422, 422, b""),
    refused("GET /nothing", 404, 404),
    refused("GET /subjects/test/nothing", 404, 404),
    refused("PATCH /subjects", 405, 405),
    refused("PUT /subjects/test/versions", 405, 405, STRING),
    refused("DELETE /schemas/ids/1", 405, 405),
]

SCHEMAS = [
    meanwhile("POST /subjects/test-subject1/versions", STRING),
    Example("GET /schemas/ids/1", {"schema": STRING_TEXT}, headers={"Accept": ALL_THREE}),
    refused("GET /schemas/ids/2", 404, 40403),
    Example("GET /schemas/ids/1/schema", "string"),
    refused("GET /schemas/ids/2/schema", 404, 40403),
    Example("GET /schemas/types/", ["AVRO"]),
    Example("GET /schemas/types", ["AVRO"]),
    Example("GET /schemas/ids/1/versions", [{"subject": "test-subject1", "version": 1}]),
    refused("GET /schemas/ids/2/versions", 404, 40403),
    Example("GET /schemas/ids/1/subjects", ["test-subject1"]),
    refused("GET /schemas/ids/2/subjects", 404, 40403),
    # Parameters of the OpenAPI file.
    meanwhile("POST /subjects/test-subject2/versions", TEST),
    Example("GET /schemas/ids/1?fetchMaxId=true", {"schema": STRING_TEXT, "maxId": 2}),
    Example("GET /schemas/ids/1?subject=test-subject1", {"schema": STRING_TEXT}),
    Example("GET /schemas/ids/1?format=unheard-of", {"schema": STRING_TEXT}),
    Example("GET /schemas/ids/1/versions?subject=test-subject2", []),
    Example(
        "GET /schemas",
        [
            version("test-subject1", 1, 1, STRING_TEXT),
            version("test-subject2", 1, 2, TEST_TEXT),
        ],
    ),
    Example("GET /schemas?offset=1&limit=1", [version("test-subject2", 1, 2, TEST_TEXT)]),
    Example(
        "GET /schemas?subjectPrefix=test-subject1",
        [version("test-subject1", 1, 1, STRING_TEXT)],
    ),
    Example("GET /schemas?ruleType=CEL", []),
    refused("GET /schemas/guids/3b241101-e2bb-4255-8caf-4136c566a962", 404, 40403),
    refused("GET /schemas/guids/3b241101-e2bb-4255-8caf-4136c566a962/ids", 404, 40403),
]  # fmt: skip

SUBJECTS = [
    Example("GET /subjects", [], headers={"Accept": ALL_THREE}),
    Example("POST /subjects/test/versions", registered(1, 1), TEST, headers={"Accept": ALL_THREE}),
    Example("POST /subjects/test/versions", registered(1, 1), TEST),
    Example("POST /subjects/subject2/versions", registered(1, 1), TEST),
    Example("GET /subjects", in_any_order("test", "subject2")),
    Example("GET /subjects?subjectPrefix=te", ["test"]),
    Example("GET /subjects?subjectPrefix=:*:", in_any_order("test", "subject2")),
    Example("GET /subjects?subjectPrefix=:.:te", ["test"]),
    Example("GET /subjects?offset=1&limit=1", ["test"]),
    Example("GET /subjects/test/versions", [1]),
    refused("GET /subjects/none/versions", 404, 40401),
    Example("GET /subjects/test/versions/1", version("test", 1, 1, TEST_TEXT)),
    Example("GET /subjects/test/versions/latest", version("test", 1, 1, TEST_TEXT)),
    Example("GET /subjects/test/versions/-1", version("test", 1, 1, TEST_TEXT)),
    refused("GET /subjects/none/versions/1", 404, 40401),
    refused("GET /subjects/test/versions/2", 404, 40402),
    refused("GET /subjects/test/versions/0", 422, 42202),
    refused("GET /subjects/test/versions/2147483648", 422, 42202),
    refused("GET /subjects/test/versions/first", 422, 42202),
    Example("GET /subjects/test/versions/1/schema", json.loads(TEST_TEXT)),
    refused("GET /subjects/test/versions/2/schema", 404, 40402),
    refused("POST /subjects/test/versions", 409, 409, LONGER),
    refused("POST /subjects/test/versions", 422, 42201, {"schema": '{"type": "strin"}'}),
    refused("POST /subjects/test/versions", 422, 42201, {**TEST, "schemaType": "PROTOBUF"}),
    Example("POST /subjects/test", version("test", 1, 1, TEST_TEXT), TEST),
    refused("POST /subjects/none", 404, 40401, TEST),
    refused("POST /subjects/test", 404, 40403, STRING),
    # A version is one more than the last; what else is wanted is refused.
    refused("POST /subjects/test/versions", 422, 42201, {**STRING, "version": 7}),
    refused("POST /subjects/test/versions", 422, 42205, {**STRING, "id": 7}),
    meanwhile("PUT /config", {"compatibility": "NONE"}),
    Example("POST /subjects/test/versions", registered(2, 2), {**STRING, "version": 2}),
    Example("GET /subjects/test/versions", [1, 2]),
    Example("GET /subjects/test/versions?offset=1&limit=5", [2]),
    Example("DELETE /subjects/test/versions/1", 1),
    refused("DELETE /subjects/none/versions/1", 404, 40401),
    refused("DELETE /subjects/test/versions/3", 404, 40402),
    refused("DELETE /subjects/test/versions/0", 422, 42202),
    Example(
        "GET /subjects/test/versions/1?deleted=true",
        version("test", 1, 1, TEST_TEXT, deleted=True),
    ),
    Example("GET /subjects/test/versions?deletedOnly=true", [1]),
    Example("DELETE /subjects/test", [2]),
    refused("DELETE /subjects/none", 404, 40401),
    # The latest version with some metadata; as none are kept, there is no such version.
    refused("GET /subjects/none/metadata?key=owner&value=me", 404, 40401),
    refused("GET /subjects/subject2/metadata?key=owner&value=me", 404, 40403),
    refused("GET /subjects/subject2/metadata", 404, 40403),
    refused("POST /subjects/subject2/versions/1/tags", 422, 42201, {"tagsToAdd": []}),
]  # fmt: skip

REFERENCES = [
    meanwhile("POST /subjects/item/versions", ITEM),
    refused("POST /subjects/order/versions", 422, 42201, {**ORDER, "references": []}),
    Example("POST /subjects/order/versions", registered(2, 1), ORDER),
    Example("GET /schemas/ids/2", {"schema": ORDER_TEXT, "references": TO_ITEM}),
    Example(
        "GET /subjects/order/versions/1", version("order", 1, 2, ORDER_TEXT, references=TO_ITEM)
    ),
    Example(
        "POST /subjects/order", version("order", 1, 2, ORDER_TEXT, references=TO_ITEM), ORDER
    ),
    Example("GET /subjects/item/versions/1/referencedby", [2]),
    Example("GET /subjects/order/versions/1/referencedby", []),
    refused("GET /subjects/none/versions/1/referencedby", 404, 40401),
    refused("GET /subjects/item/versions/2/referencedby", 404, 40402),
    refused("GET /subjects/item/versions/x/referencedby", 422, 42202),
    refused("DELETE /subjects/item/versions/1", 422, 42206),
    refused("DELETE /subjects/item", 422, 42206),
    # "resolved" has what is referred to in it.
    Example("GET /schemas/ids/2?format=resolved", {"schema": RESOLVED, "references": TO_ITEM}),
    Example("GET /schemas/ids/2/schema?format=resolved", json.loads(RESOLVED)),
    Example(
        "GET /subjects/order/versions/latest?format=resolved",
        version("order", 1, 2, RESOLVED, references=TO_ITEM),
    ),
    Example("GET /subjects/order/versions/1/schema?format=resolved", json.loads(RESOLVED)),
    Example(
        "POST /subjects/order?format=resolved",
        version("order", 1, 2, RESOLVED, references=TO_ITEM),
        ORDER,
    ),
    meanwhile("DELETE /subjects/order"),
    Example("GET /subjects/item/versions/1/referencedby", []),
    Example("GET /subjects/item/versions/1/referencedby?deleted=true", [2]),
]  # fmt: skip

NORMALIZED = [
    meanwhile("POST /subjects/test/versions", {"schema": '{"type": "int", "b": 1, "a": 2}'}),
    refused("POST /subjects/test", 404, 40403, {"schema": '{"type": "int", "a": 2, "b": 1}'}),
    Example(
        "POST /subjects/test?normalize=true",
        version("test", 1, 1, '{"type":"int","b":1,"a":2}'),
        {"schema": '{"type": "int", "a": 2, "b": 1}'},
    ),
    Example(
        "POST /subjects/test/versions?normalize=true",
        registered(1, 1),
        {"schema": '{"type": "int", "a": 2, "b": 1}'},
    ),
]

MODE = [
    Example("GET /mode", {"mode": "READWRITE"}),
    Example("PUT /mode", {"mode": "READWRITE"}, {"mode": "READWRITE"}),
    refused("PUT /mode", 422, 42204, {"mode": "SIDEWAYS"}),
    refused("PUT /mode/test", 422, 42204, {"mode": "FORWARD"}),
    refused("GET /mode/test", 404, 40409),
    refused("DELETE /mode/test", 404, 40401),
    Example("GET /mode/test?defaultToGlobal=true", {"mode": "READWRITE"}),
    Example("PUT /mode/test", {"mode": "READONLY"}, {"mode": "READONLY"}),
    Example("GET /mode/test", {"mode": "READONLY"}),
    refused("POST /subjects/test/versions", 422, 42205, STRING),
    refused("PUT /config/test", 422, 42205, {"compatibility": "NONE"}),
    Example("DELETE /mode/test", {"mode": "READONLY"}),
    Example("POST /subjects/test/versions", registered(1, 1), STRING),
    refused("PUT /mode/test", 422, 42205, {"mode": "IMPORT"}),
    Example("PUT /mode/test?force=true", {"mode": "IMPORT"}, {"mode": "IMPORT"}),
    Example("PUT /mode/test", {"mode": "IMPORT"}, {"mode": "IMPORT"}),
    refused("POST /subjects/test/versions", 422, 42205, TEST),
    Example(
        "POST /subjects/test/versions", registered(17, 4), {**TEST, "id": 17, "version": 4}
    ),
    refused("POST /subjects/test/versions", 422, 42207, {**LONGER, "id": 17}),
    # An override of all subjects' own modes.
    Example("PUT /mode", {"mode": "READONLY_OVERRIDE"}, {"mode": "READONLY_OVERRIDE"}),
    Example("GET /mode/test", {"mode": "IMPORT"}),
    Example("GET /mode/test?defaultToGlobal=true", {"mode": "READONLY_OVERRIDE"}),
    refused("POST /subjects/test/versions", 422, 42205, {**LONGER, "id": 18}),
    refused("DELETE /subjects/test", 422, 42205),
    Example("DELETE /mode", {"mode": "READONLY_OVERRIDE"}),
    Example("GET /mode", {"mode": "READWRITE"}),
]  # fmt: skip

COMPATIBILITY = [
    meanwhile("POST /subjects/test/versions", TEST),
    Example(
        "POST /compatibility/subjects/test/versions/latest", {"is_compatible": True}, TEST,
        headers={"Accept": ALL_THREE},
    ),
    Example("POST /compatibility/subjects/test/versions/1", {"is_compatible": True}, TEST),
    Example("POST /compatibility/subjects/test/versions", {"is_compatible": True}, TEST),
    Example("POST /compatibility/subjects/test/versions/latest", {"is_compatible": False}, LONGER),
    Example("POST /compatibility/subjects/test/versions", {"is_compatible": False}, LONGER),
    Example(
        "POST /compatibility/subjects/test/versions/latest?verbose=true",
        incompatible("READER_FIELD_MISSING_DEFAULT_VALUE", "BACKWARD"),
        LONGER,
    ),
    Example(
        "POST /compatibility/subjects/test/versions?verbose=true",
        incompatible("READER_FIELD_MISSING_DEFAULT_VALUE", "BACKWARD"),
        LONGER,
    ),
    Example(
        "POST /compatibility/subjects/test/versions/1?verbose=true",
        {"is_compatible": True, "messages": []},
        TEST,
    ),
    refused("POST /compatibility/subjects/test/versions/2", 404, 40402, TEST),
    refused("POST /compatibility/subjects/none/versions/1", 404, 40402, TEST),
    Example("POST /compatibility/subjects/none/versions/latest", {"is_compatible": True}, TEST),
    Example("POST /compatibility/subjects/none/versions", {"is_compatible": True}, TEST),
    refused("POST /compatibility/subjects/test/versions/1", 422, 42201, {"schema": "{"}),
    refused("POST /compatibility/subjects/test/versions/0", 422, 42202, TEST),
]  # fmt: skip

CONFIG = [
    Example("PUT /config", {"compatibility": "FULL"}, {"compatibility": "FULL"}),
    refused("PUT /config", 422, 42203, {"compatibility": "SIDEWAYS"}),
    refused("PUT /config", 422, 42203, {}),
    Example("GET /config", {"compatibilityLevel": "FULL"}),
    refused("GET /config/test", 404, 40408),
    Example("GET /config/test?defaultToGlobal=true", {"compatibilityLevel": "FULL"}),
    refused("DELETE /config/test", 404, 40401),
    Example("PUT /config/test", {"compatibility": "FORWARD"}, {"compatibility": "FORWARD"}),
    Example("GET /config/test", {"compatibilityLevel": "FORWARD"}),
    refused("PUT /config/test", 422, 42203, {"compatibility": "SIDEWAYS"}),
    Example("DELETE /config/test", {"compatibilityLevel": "FORWARD"}),
    refused("GET /config/test", 404, 40408),
    Example("DELETE /config", {"compatibilityLevel": "FULL"}),
    Example("GET /config", {"compatibilityLevel": "BACKWARD"}),
    *(
        Example("PUT /config", {"compatibility": level}, {"compatibility": level})
        for level in (
            "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL",
            "FULL_TRANSITIVE", "NONE",
        )
    ),
    # What is not kept is not taken in silence.
    refused("PUT /config", 422, 42205, {"compatibility": "FULL", "normalize": True}),
    refused("PUT /config/test", 422, 42205, {"compatibility": "FULL", "alias": "other"}),
    refused("PUT /config/test", 422, 42205, {"compatibility": "FULL", "compatibilityGroup": "g"}),
    Example("GET /config", {"compatibilityLevel": "NONE"}),
    Example(
        "PUT /config", {"compatibility": "FULL"},
        {"compatibility": "FULL", "normalize": False, "defaultMetadata": None},
    ),
]  # fmt: skip

CONTEXTS = [
    Example("GET /contexts", ["."]),
    Example("GET /contexts?contextPrefix=.l", []),
    Example("GET /contexts?offset=1", []),
    Example("POST /subjects/:.:test/versions", registered(1, 1), STRING),
    Example("GET /subjects", ["test"]),
    Example("GET /subjects/:.:test/versions/1", version("test", 1, 1, STRING_TEXT)),
    Example("PUT /config/:.:", {"compatibility": "FULL"}, {"compatibility": "FULL"}),
    Example("GET /config", {"compatibilityLevel": "FULL"}),
    Example("GET /config/:.:", {"compatibilityLevel": "FULL"}),
    Example("PUT /mode/:.:", {"mode": "READONLY"}, {"mode": "READONLY"}),
    Example("GET /mode/:.:", {"mode": "READONLY"}),
    Example("DELETE /mode/:.:", {"mode": "READONLY"}),
    # There is one context; another one is not made.
    refused("POST /subjects/:.other:test/versions", 422, 42208, STRING),
    refused("GET /subjects/:.other:test/versions", 404, 40401),
    Example("GET /subjects?subjectPrefix=:.other:", []),
    refused("DELETE /contexts/.other", 404, 40401),
    refused("DELETE /contexts/.", 422, 42211),
]

ASSOCIATIONS = [
    Example("GET /associations/resources/-/test?resourceType=topic&associationType=value", []),
    Example("GET /associations/resources/some-id", []),
    Example("GET /associations/subjects/test", []),
    refused("POST /associations", 422, 42212, {"resourceName": "test"}),
    refused("PUT /associations/resources/some-id", 422, 42212, {"resourceName": "test"}),
    refused("DELETE /associations/resources/some-id", 404, 40410),
]

ROOT = [
    Example("GET /", {}),
    Example("POST /", {}, {}),
    Example("HEAD /subjects", None),
    Example("HEAD /subjects/none/versions", None, status=404),
    Example("OPTIONS /subjects", None),
    refused("OPTIONS /nothing", 404, 404),
    Example("GET /subjects/", []),
]

SECTIONS = {
    "API Usage Examples": USAGE,
    "Schema Deletion Guidelines": DELETION,
    "API Reference: Content Types": CONTENT_TYPES,
    "API Reference: Errors": ERRORS,
    "API Reference: Schemas": SCHEMAS,
    "API Reference: Subjects": SUBJECTS,
    "API Reference: Mode": MODE,
    "API Reference: Compatibility": COMPATIBILITY,
    "API Reference: Config": CONFIG,
    "OpenAPI: references": REFERENCES,
    "OpenAPI: normalize": NORMALIZED,
    "OpenAPI: contexts": CONTEXTS,
    "OpenAPI: associations": ASSOCIATIONS,
    "OpenAPI: root, and methods": ROOT,
}


@pytest.mark.parametrize("section", SECTIONS)
def test_the_documents_examples_are_answered_as_they_say(chroot: str, section: str) -> None:
    with serving(chroot) as server:
        rest = Rest(server)
        for number, each in enumerate(SECTIONS[section], 1):
            method, path = each.request.split(" ")
            got = rest(method, path, each.body, headers=each.headers)
            where = f"example {number}, {each.request}: {got}"
            assert got.status == each.status, where
            assert each.answer(got.body) if callable(each.answer) else got.body == each.answer, (
                where
            )
            assert got.content_type == each.content_type, where
