"""Columns that Spark's writers add to a schema: planned on a real registry, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql.types import StructType

from avro_columns.compatibility import Compatibility
from spark_logbus.client import Admin, Cluster
from spark_logbus.client.schemas.topic import WriterSchema
from spark_logbus.errors import InvalidOptionError
from spark_logbus.local.cluster import EmbeddedCluster
from spark_logbus.schemas.registry import SchemaAdministration, SchemaRegistry
from spark_logbus.schemas.registry.subjects import Mode
from spark_logbus.sink.options import parse_options
from spark_logbus.sink.typed_plan import plan_typed
from spark_logbus.zookeeper import Session
from tests.builders.typed import FLIGHT

COLUMNS = {"carrier": "string", "number": "integer", "delay": "double", "tail": "string"}


@pytest.fixture(scope="module")
def session(brokers: EmbeddedCluster) -> Iterator[Session]:
    with Session(brokers.zookeeper, client_name="tests", expects_cluster=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def admin(brokers: EmbeddedCluster) -> Iterator[Admin]:
    with Cluster.from_zookeeper(brokers.zookeeper) as cluster:
        yield Admin(cluster)


def planned(brokers: EmbeddedCluster, admin: Admin, topic: str, **added: str) -> WriterSchema:
    options = parse_options(
        {"zookeeper": brokers.zookeeper, "topic": topic, "evolve": "true"}, overwrite=False
    )
    schema = StructType()
    for name, kind in {**COLUMNS, **added}.items():
        schema = schema.add(name, kind)
    described = admin.describe([topic], ends=False)[topic]
    return plan_typed(options, schema, described)[1]


def test_writers_that_add_columns_at_once_keep_each_others(
    brokers: EmbeddedCluster, session: Session, admin: Admin
) -> None:
    admin.create_topic("racing", partitions=1, value_schema=FLIGHT)
    names = [f"x{number}" for number in range(6)]
    with ThreadPoolExecutor(len(names)) as pool:
        found = pool.map(lambda name: planned(brokers, admin, "racing", **{name: "long"}), names)
        assert len({each.schema_id for each in found}) == len(names)
    registry = SchemaRegistry(session)
    latest = json.loads(registry.version("racing-value").text)
    assert {field["name"] for field in latest["fields"]} >= {*names}
    assert registry.versions("racing-value") == [*range(1, len(names) + 2)]


@pytest.mark.parametrize("why", ["the mode", "the compatibility"])
def test_what_stands_against_a_new_version_is_said(
    brokers: EmbeddedCluster, session: Session, admin: Admin, why: str
) -> None:
    topic = f"refusing-{why[4:8]}"
    schema = json.loads(FLIGHT)
    admin.create_topic(topic, partitions=1, value_schema=schema)
    administration = SchemaAdministration(session)
    if why == "the mode":
        administration.set_mode(f"{topic}-value", Mode.READONLY)
        said = (
            f"Option evolve: the schema of topic {topic} takes no new version.*READONLY.*"
            "Set its mode to READWRITE"
        )
    else:
        registry = SchemaRegistry(session)
        odd = {"name": "x", "type": "string", "default": ""}
        with_odd = {**schema, "fields": [*schema["fields"], odd]}
        registry.register(f"{topic}-value", json.dumps(with_odd))
        registry.register(f"{topic}-value", json.dumps({**schema, "doc": "again"}))
        administration.set_compatibility(f"{topic}-value", Compatibility.BACKWARD_TRANSITIVE)
        said = (
            f"Option evolve: .* no compatible version of the schema of topic {topic}: .*version 2"
        )
    before = SchemaRegistry(session).versions(f"{topic}-value")
    with pytest.raises(InvalidOptionError, match=said):
        planned(brokers, admin, topic, x="long")
    assert SchemaRegistry(session).versions(f"{topic}-value") == before
    assert planned(brokers, admin, topic).schema_id
