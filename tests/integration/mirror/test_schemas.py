"""Mirrors of topics whose values have schemas, between two real clusters."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from spark_logbus.client import Admin, Producer
from spark_logbus.errors import InvalidRequestError
from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from spark_logbus.schemas.registry import SchemaRegistry
from spark_logbus.schemas.registry.subjects import Mode, Reference
from spark_logbus.zookeeper import Session
from tests.integration.mirror.mirrored import (
    Pair,
    assert_equal,
    copy_all,
    payloads,
    records,
    two_clusters,
)

WORD = {"name": "word", "type": "string"}
CODE = {"type": "record", "name": "Code", "fields": [WORD]}
NEWER = {**CODE, "fields": [WORD, {"name": "n", "type": "int", "default": 7}]}


@pytest.fixture
def pair(zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_clusters(zookeeper.address, tmp_path_factory.mktemp("clusters")) as clusters:
        yield clusters


def created(pair: Pair, encoding: str, **config: str) -> str:
    topic = f"typed-{encoding}"
    Admin(pair.source).create_topic(
        topic, partitions=2, value_schema=CODE, value_encoding=encoding,
        config={"retention.ms": "-1", **config},
    )  # fmt: skip
    return topic


def send(pair: Pair, topic: str, count: int) -> None:
    with Producer(pair.source) as producer:
        futures = [
            producer.send(
                topic,
                None if number % 9 == 8 else {"word": f"word {number}"},
                key=b"%d" % (number % 5),
            )
            for number in range(count)
        ]
    for future in futures:
        future.result(60)


def register(
    zookeeper: str, subject: str, schema: object, references: tuple[Reference, ...] = ()
) -> int:
    with Session(zookeeper, client_name="test", expects_cluster=True) as session:
        registered = SchemaRegistry(session).register(subject, json.dumps(schema), references)
        return registered.schema_id


def schema_ids(zookeeper: str, subject: str) -> list[int]:
    with Session(zookeeper, client_name="test", expects_cluster=True) as session:
        return SchemaRegistry(session).schema_ids(subject)


@pytest.mark.parametrize("encoding", ["columns", pytest.param("avro", marks=pytest.mark.long)])
def test_rows_and_their_schemas_are_copied(pair: Pair, encoding: str) -> None:
    """Copies a version that comes while the mirror runs, too, and under another name of the
    topic."""
    register(pair.source_zookeeper, "others", "long")  # so that ids do not begin at 1
    topic = created(pair, encoding)
    subject = f"{topic}-value"
    send(pair, topic, 100)
    with pair.mirror(topic, rename="copy-{topic}") as mirror:
        copy_all(mirror)
        register(pair.source_zookeeper, subject, NEWER)
        send(pair, topic, 100)
        copy_all(mirror)
    assert assert_equal(pair, topic, f"copy-{topic}") == 200
    assert {each.value["n"] for each in records(pair.target, f"copy-{topic}") if each.value} == {7}
    assert payloads(pair.target, f"copy-{topic}") == payloads(pair.source, topic)
    ids = schema_ids(pair.source_zookeeper, subject)
    assert schema_ids(pair.target_zookeeper, subject) == ids == [2, 3]
    with Session(pair.target_zookeeper, client_name="test") as session:
        assert SchemaRegistry(session).mode(subject) is Mode.IMPORT


def test_ids_that_are_taken_are_given_anew(pair: Pair) -> None:
    topic = created(pair, "columns")
    register(pair.source_zookeeper, f"{topic}-value", NEWER)
    assert register(pair.target_zookeeper, "theirs", "string") == 1
    send(pair, topic, 100)
    with pair.mirror(topic) as mirror:
        copy_all(mirror)
    assert assert_equal(pair, topic) == 100
    ids = schema_ids(pair.target_zookeeper, f"{topic}-value")
    assert len(ids) == 2
    assert 1 not in ids
    assert payloads(pair.target, topic) == payloads(pair.source, topic)
    with pair.mirror(topic) as mirror:  # which has to find out what is which
        send(pair, topic, 50)
        copy_all(mirror)
    assert assert_equal(pair, topic) == 150


@pytest.mark.long
def test_values_that_hold_ids_need_the_same_ones(pair: Pair) -> None:
    topic = created(pair, "avro")
    with Producer(pair.source) as producer:
        producer.send(topic, b"\0\0\0\0\1\6abc", partition=0)
    with pair.mirror(topic, name="same") as mirror:
        copy_all(mirror)
    assert assert_equal(pair, topic) == 1
    other = "typed-again"
    register(pair.target_zookeeper, "theirs", "string")
    Admin(pair.source).create_topic(other, partitions=1, value_schema=NEWER, value_encoding="avro")
    with Producer(pair.source) as producer:
        producer.send(other, b"\0\0\0\0\2\6abc\2", partition=0)
    with (
        pair.mirror(other) as mirror,
        pytest.raises(InvalidRequestError, match=r"wire format.*has the id 2 in the source, and 3"),
    ):
        copy_all(mirror)


@pytest.mark.long
def test_schemas_are_copied_with_those_they_refer_to(pair: Pair) -> None:
    register(pair.source_zookeeper, "code", CODE)
    wrapped = {"type": "record", "name": "Wrapped", "fields": [{"name": "code", "type": "Code"}]}
    register(pair.source_zookeeper, "wrapped", wrapped, (Reference("Code", "code", 1),))
    Admin(pair.source).create_topic(
        "wrapped", partitions=1, value_encoding="columns", value_subject="wrapped"
    )
    with Producer(pair.source) as producer:
        producer.send("wrapped", {"code": {"word": "abc"}})
    with pair.mirror("wrapped") as mirror:
        copy_all(mirror)
    assert assert_equal(pair, "wrapped") == 1
    assert schema_ids(pair.target_zookeeper, "code") == [1]


@pytest.mark.long
def test_another_schema_under_the_same_version_is_refused(pair: Pair) -> None:
    topic = created(pair, "columns")
    register(pair.target_zookeeper, f"{topic}-value", NEWER)
    with (
        pair.mirror(topic) as mirror,
        pytest.raises(InvalidRequestError, match=r"Version 1 of the subject .* is another schema"),
    ):
        copy_all(mirror)
    assert topic not in {each.name for each in Admin(pair.target).topics()}
