"""Streams of topics with a schema, from planning to rows: real servers, and no Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from avro_columns.compatibility import Compatibility
from avro_columns.confluent import with_confluent_id
from avro_columns.encode.encoder import Encoder
from avro_columns.values.rows import columns_of
from spark_logbus import retry
from spark_logbus.client import Admin, Cluster, Producer
from spark_logbus.client.schemas import topic as value_schemas
from spark_logbus.datasource.columns import ColumnChoice
from spark_logbus.datasource.options import parse_options, schema_options
from spark_logbus.datasource.stream_driver import StreamDriver
from spark_logbus.datasource.stream_offset import UNRESOLVED
from spark_logbus.datasource.task import read_partition
from spark_logbus.datasource.value_schemas import look_up_schema
from spark_logbus.errors import CoordinationError, InvalidOptionError, UndecodableRecordError
from spark_logbus.local.cluster import EmbeddedCluster
from spark_logbus.retry import RetryPolicy
from spark_logbus.schemas.errors import SchemaTooLargeError, UnknownSubjectError
from spark_logbus.schemas.registry import SchemaAdministration, SchemaRegistry
from spark_logbus.schemas.registry.subjects import Mode
from spark_logbus.spark.driver import DriverConnections
from spark_logbus.zookeeper import Session
from tests.builders.typed import FLIGHT, flights
from tests.helpers import wait_until

pytestmark = pytest.mark.timeout(300)

GATE = {"name": "gate", "type": "string", "default": "?"}
NEWER = json.dumps({**json.loads(FLIGHT), "fields": [*json.loads(FLIGHT)["fields"], GATE]})


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path_factory.mktemp("cluster")) as embedded:
        yield embedded


@pytest.fixture
def cluster(servers: EmbeddedCluster) -> Iterator[Cluster]:
    with Cluster.from_zookeeper(servers.zookeeper) as connected:
        yield connected


@pytest.fixture(params=["columns", "avro"])
def encoding(request: pytest.FixtureRequest) -> str:
    encoding: str = request.param
    return encoding


# Of tests that start ZooKeeper anew, which takes seconds.
one_encoding = pytest.mark.parametrize(
    "encoding", ["columns", pytest.param("avro", marks=pytest.mark.long)], indirect=True
)


@contextmanager
def without_zookeeper(servers: EmbeddedCluster) -> Iterator[None]:
    servers.zookeeper_server.stop()
    try:
        yield
    finally:
        servers.zookeeper_server.start()


class Query:
    """Query that does what Spark does with a source from one checkpoint, in its order. ``rows`` are
    all that were read, as dicts with their offsets."""

    def __init__(self, servers: EmbeddedCluster, topic: str, **options: str) -> None:
        self.given = {
            "zookeeper": servers.zookeeper, "subscribe": topic, "startingOffsets": "earliest",
            **options,
        }  # fmt: skip
        self.given = {name: value for name, value in self.given.items() if value}
        self.columns = look_up_schema(schema_options(self.given))
        self.at: dict[str, Any] = UNRESOLVED.to_json()
        self.rows: list[dict[str, Any]] = []

    def run(self, *, prefetched: bool = False, patience_s: float = 60) -> Run:
        return Run(self, prefetched=prefetched, patience_s=patience_s)


class Run:
    """One process that plans it."""

    def __init__(self, query: Query, *, prefetched: bool, patience_s: float) -> None:
        parsed = parse_options(query.given, streaming=True)
        self._query = query
        self._columns = ColumnChoice(query.columns, parsed.values)
        self.connections = DriverConnections(parsed.zookeeper)
        self._driver = StreamDriver(
            parsed,
            connections=self.connections,
            columns=self._columns,
            background=ThreadPoolExecutor(2),
            prefetch=prefetched,
            retry_policy=RetryPolicy(limit_s=patience_s),
        )

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._driver.close()

    def micro_batch(self) -> list[dict[str, Any]]:
        """The rows of the next one; the checkpoint moves behind it once they are read."""
        query = self._query
        end = dict(self._driver.latest(query.at, limited=True))
        planned = self._driver.plan_input(query.at, end)
        batches = planned.rows
        if batches is None:
            batches = [
                batch
                for partition in planned.partitions
                for batch in read_partition(partition, self._columns, fail_on_data_loss=True)
            ]
        table = pa.Table.from_batches(batches, self._columns.arrow_schema())
        rows: list[dict[str, Any]] = table.to_pylist()
        query.at = json.loads(json.dumps(end))
        query.rows += rows
        return rows


def topic_of(cluster: Cluster, encoding: str, name: str) -> str:
    Admin(cluster).create_topic(
        name, partitions=1, value_schema=FLIGHT, value_encoding=encoding,
        config={"retention.ms": "-1"},
    )  # fmt: skip
    return name


def publish(cluster: Cluster, topic: str, rows: list[Any]) -> None:
    with Producer(cluster) as producer:
        for future in producer.send_arrow(topic, pa.Table.from_pylist(rows)):
            future.result()


def register(servers: EmbeddedCluster, topic: str, schema: str) -> int:
    with Session(servers.zookeeper, client_name="tests", expects_cluster=True) as session:
        return SchemaRegistry(session).register(f"{topic}-value", schema).schema_id


def numbers(query: Query) -> list[int]:
    assert [row["offset"] for row in query.rows] == list(range(len(query.rows)))
    return [row["number"] for row in query.rows]


def later(number: int) -> dict[str, Any]:
    return {"carrier": "B6", "number": number, "delay": None, "tail": None, "gate": "C1"}


@one_encoding
@pytest.mark.parametrize("prefetched", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_known_schema_needs_no_zookeeper_and_a_new_one_waits_for_it(
    servers: EmbeddedCluster, cluster: Cluster, encoding: str, prefetched: bool
) -> None:
    topic = topic_of(cluster, encoding, f"known-{encoding}-{prefetched}")
    publish(cluster, topic, flights(0, 3))
    query = Query(servers, topic, flatten="true", columns="number,offset")
    with (
        query.run(prefetched=prefetched) as run,
        Producer(cluster) as producer,
        ThreadPoolExecutor(1) as pool,
    ):
        assert len(run.micro_batch()) == 3
        producer.send(topic, flights(3, 1)[0]).result()
        servers.zookeeper_server.stop()
        producer.send_many(topic, flights(4, 2))
        producer.flush()
        assert len(run.micro_batch()) == 3
        servers.zookeeper_server.start()
        wait_until(lambda: answers(run), message="a session again")
        register(servers, topic, NEWER)
        publish(cluster, topic, [later(6)])
        servers.zookeeper_server.stop()
        waiting = pool.submit(run.micro_batch)
        wait_until(lambda: bool(run._driver._schemas._looked_at[1]), message="an unknown id")
        assert not waiting.done()
        servers.zookeeper_server.start()
        assert [row["number"] for row in waiting.result(60)] == [6]
    assert numbers(query) == [0, 1, 2, 3, 4, 5, 6]


def answers(run: Run) -> bool:
    try:
        run.connections.require_zookeeper()
    except CoordinationError:
        return False
    return True


def test_a_new_schema_that_never_comes_ends_the_query_and_loses_nothing(
    servers: EmbeddedCluster, cluster: Cluster
) -> None:
    topic = topic_of(cluster, "avro", "never")
    publish(cluster, topic, flights(0, 3))
    query = Query(servers, topic, flatten="true", columns="number,offset", onUndecodable="drop")
    with query.run(patience_s=1) as run:
        assert len(run.micro_batch()) == 3
        schema_id = register(servers, topic, NEWER)
        with Producer(cluster) as producer:
            for value in framed([later(3)], NEWER, schema_id):
                producer.send(topic, value).result()
        with without_zookeeper(servers), pytest.raises(CoordinationError) as raised:
            run.micro_batch()
    said = str(raised.value)
    assert "Looking up schemas has failed for" in said
    assert f"never-0[3, 4) have the schema ids {schema_id}, which are not known yet" in said
    assert "ZooKeeper" in said
    with query.run() as run:
        assert [row["number"] for row in run.micro_batch()] == [3]
    assert numbers(query) == [0, 1, 2, 3]


def framed(rows: list[Any], schema: str, schema_id: int) -> list[bytes]:
    datums = Encoder(schema).encode(columns_of(rows, schema))
    values: list[bytes] = with_confluent_id(datums, schema_id).to_pylist()
    return values


@one_encoding
def test_a_start_and_a_dataframe_wait_for_zookeeper_and_say_so(
    servers: EmbeddedCluster, cluster: Cluster, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_of(cluster, encoding, f"start-{encoding}")
    publish(cluster, topic, flights(0, 3))
    query = Query(servers, topic, flatten="true", columns="number,offset")
    with query.run() as run:
        run.micro_batch()
    publish(cluster, topic, flights(3, 2))
    with without_zookeeper(servers):
        with pytest.raises(CoordinationError, match="Looking up the topics has failed for"):
            Query(servers, topic)
        with query.run() as run:
            said = "Planning the next micro-batch has failed for"
            with pytest.raises(CoordinationError, match=said):
                run.micro_batch()
    monkeypatch.setattr(retry, "_WRONG_ADDRESS_S", 60.0)  # the server may take its time to start
    with ThreadPoolExecutor(2) as pool, query.run() as run:
        with without_zookeeper(servers):
            waiting = pool.submit(run.micro_batch)
            made = pool.submit(Query, servers, topic)
        assert len(waiting.result(60)) == 2
        assert made.result(60).columns.names[1] == "value"
    assert numbers(query) == [0, 1, 2, 3, 4]


def delete_for_good(servers: EmbeddedCluster, topic: str, version: int) -> None:
    with Session(servers.zookeeper, client_name="tests", expects_cluster=True) as session:
        administration = SchemaAdministration(session)
        administration.delete_version(f"{topic}-value", version)
        administration.delete_version(f"{topic}-value", version, permanent=True)


def test_records_of_a_schema_that_is_gone_are_told_dropped_kept_and_read_again(
    servers: EmbeddedCluster, cluster: Cluster, encoding: str
) -> None:
    topic = topic_of(cluster, encoding, f"gone-{encoding}")
    publish(cluster, topic, flights(0, 3))
    schema_id = register(servers, topic, NEWER)
    publish(cluster, topic, [later(3)])
    with Session(servers.zookeeper, client_name="tests", expects_cluster=True) as session:
        old = SchemaRegistry(session).version(f"{topic}-value", 1)
    delete_for_good(servers, topic, 1)
    failing = Query(servers, topic, flatten="true")
    with failing.run() as run, pytest.raises(UndecodableRecordError) as raised:
        run.micro_batch()
    said = str(raised.value)
    assert f"3 of the records {topic}-0[0, 3) do not decode" in said
    assert f"its schema id is {old.schema_id}, which the topic's subject '{topic}-value'" in said
    assert "register it with that id again, in the mode IMPORT" in said
    assert "onUndecodable: drop" in said
    dropping = Query(servers, topic, flatten="true", onUndecodable="drop")
    with dropping.run() as run:
        assert [row["offset"] for row in run.micro_batch()] == [3]
    keeping = Query(servers, topic, flatten="true", onUndecodable="keep")
    with keeping.run() as run:
        told = [row["undecodable"] for row in run.micro_batch()]
    assert told[3] is None
    assert all((one["value"] is not None) == (encoding == "avro") for one in told[:3])
    assert all(("no bytes to show" in one["reason"]) == (encoding == "columns") for one in told[:3])
    with Session(servers.zookeeper, client_name="tests", expects_cluster=True) as session:
        SchemaAdministration(session).set_mode(f"{topic}-value", Mode.IMPORT, force=True)
        registry = SchemaRegistry(session)
        again = registry.register(f"{topic}-value", old.text, schema_id=old.schema_id, version=1)
    assert again.schema_id == old.schema_id != schema_id
    with failing.run() as run:
        run.micro_batch()
    assert numbers(failing) == [0, 1, 2, 3]


def test_a_topic_that_is_created_anew_is_read_under_its_own_schema(
    servers: EmbeddedCluster, cluster: Cluster
) -> None:
    """Creates it under a running query, and between two runs; the new one first has the columns,
    then not."""
    topic = topic_of(cluster, "columns", "anew")
    publish(cluster, topic, flights(0, 3))
    query = Query(servers, topic, flatten="true", columns="number,offset", failOnDataLoss="false")
    fields = json.loads(FLIGHT)["fields"]
    with query.run() as run:
        run.micro_batch()
        created_anew(cluster, topic, {"type": "record", "name": "Other", "fields": fields[1:2]})
        publish(cluster, topic, [{"number": 7}])
        assert [row["number"] for row in run.micro_batch()] == [7]
    text = {"name": "number", "type": "string"}
    created_anew(cluster, topic, {"type": "record", "name": "Third", "fields": [text]})
    publish(cluster, topic, [{"number": "x"}])
    with query.run() as run, pytest.raises(InvalidOptionError) as raised:
        run.micro_batch()
    said = str(raised.value)
    assert "The schema gives column number the type int, the source has string" in said
    assert "So it is with anew; " in said
    assert "created anew" in said


def created_anew(cluster: Cluster, topic: str, schema: dict[str, Any]) -> None:
    admin = Admin(cluster)
    admin.delete_topic(topic)
    subject = f"{topic}-{schema['name']}"
    admin.create_topic(topic, partitions=1, value_schema=schema, value_subject=subject)


@pytest.mark.parametrize("new", ["another schema", "none"])
def test_a_pattern_that_meets_a_topic_with_other_columns_names_it(
    servers: EmbeddedCluster, cluster: Cluster, new: str
) -> None:
    prefix = f"met-{new.partition(' ')[0]}"
    first = topic_of(cluster, "avro", f"{prefix}-1")
    publish(cluster, first, flights(0, 2))
    query = Query(servers, "", subscribe="", subscribePattern=f"{prefix}-.*")
    with query.run() as run:
        run.micro_batch()
        schema = json.loads(NEWER.replace("Flight", "Gated")) if new == "another schema" else None
        Admin(cluster).create_topic(f"{prefix}-2", partitions=1, value_schema=schema)
        publish(cluster, first, flights(2, 1))
        if schema is not None:  # its fields are there, and one more that is not read
            schema["fields"] = [{"name": "x", "type": "int"}]
            assert len(run.micro_batch()) == 1
            Admin(cluster).create_topic(f"{prefix}-3", partitions=1, value_schema=schema)
            publish(cluster, first, flights(3, 1))
            said = f"So it is with {prefix}-3; topics with other columns are read apart"
        else:
            said = f"The topic {prefix}-1 has a schema and {prefix}-2 has none; read them apart"
        with pytest.raises(InvalidOptionError, match=said):
            run.micro_batch()


def test_a_query_goes_on_from_its_checkpoint_under_the_schema_that_has_its_columns(
    servers: EmbeddedCluster, cluster: Cluster, encoding: str
) -> None:
    """Registers schemas after the DataFrame was made, and after the last run: no column changes."""
    topic = topic_of(cluster, encoding, f"evolved-{encoding}")
    publish(cluster, topic, flights(0, 2))
    query = Query(servers, topic, flatten="true")
    register(servers, topic, NEWER)
    with query.run() as run:
        run.micro_batch()
        publish(cluster, topic, [later(2)])
        run.micro_batch()
    publish(cluster, topic, [later(3)])
    with query.run() as run:
        run.micro_batch()
    assert numbers(query) == [0, 1, 2, 3]
    assert "gate" not in query.rows[3]
    anew = Query(servers, topic, flatten="true")
    with anew.run() as run:
        assert [row["gate"] for row in run.micro_batch()] == ["?", "?", "C1", "C1"]


def test_versions_that_are_asked_for(servers: EmbeddedCluster, cluster: Cluster) -> None:
    topic = topic_of(cluster, "columns", "versions")
    register(servers, topic, NEWER)
    for word in ("latest", "-1"):
        assert "gate" in Query(servers, topic, flatten="true", schemaVersion=word).columns.names
    old = Query(servers, topic, flatten="true", schemaVersion="1").columns.names
    assert "gate" not in old
    for word, said in (
        ("0", "Option schemaVersion: expected a whole number from 1"),
        ("v1", "Option schemaVersion: expected a whole number from 1"),
        ("999", "Option schemaVersion, of the topic versions: .* has no version 999; .* are 1, 2"),
    ):
        with pytest.raises(InvalidOptionError, match=said):
            Query(servers, topic, schemaVersion=word)
    with pytest.raises(InvalidOptionError, match="Option columns names gate, which"):
        Query(servers, topic, schemaVersion="1", flatten="true", columns="gate")
    with Session(servers.zookeeper, client_name="tests", expects_cluster=True) as session:
        SchemaAdministration(session).delete_subject(f"{topic}-value")
        assert "gate" in Query(servers, topic, flatten="true").columns.names
        SchemaAdministration(session).delete_subject(f"{topic}-value", permanent=True)
    with pytest.raises(UnknownSubjectError, match=r"schema of the topic versions is gone.*IMPORT"):
        Query(servers, topic)


def test_a_version_that_no_columns_can_have_is_told_and_gone_round(
    servers: EmbeddedCluster, cluster: Cluster
) -> None:
    topic = topic_of(cluster, "avro", "recursive")
    publish(cluster, topic, flights(0, 1))
    query = Query(servers, topic)
    child = {"name": "next", "type": ["null", "Flight"], "default": None}
    fields = [*json.loads(FLIGHT)["fields"], child]
    register(servers, topic, json.dumps({**json.loads(FLIGHT), "fields": fields}))
    with pytest.raises(InvalidOptionError) as raised:
        Query(servers, topic)
    assert "The topic recursive cannot be read under version 2 of the schema" in str(raised.value)
    assert "option schemaVersion" in str(raised.value)
    with query.run() as run:
        assert len(run.micro_batch()) == 1
    assert Query(servers, topic, schemaVersion="1").columns == query.columns


def test_schemas_that_together_are_too_large_are_refused(
    servers: EmbeddedCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_of(cluster, "columns", "large")
    register(servers, topic, NEWER)
    monkeypatch.setattr(value_schemas, "MAX_TEXT_BYTES", len(NEWER))
    with pytest.raises(SchemaTooLargeError, match="the subject 'large-value' take more than"):
        Query(servers, topic)


@pytest.mark.long
def test_three_hundred_versions_are_read_in_one_go(
    servers: EmbeddedCluster, cluster: Cluster, encoding: str
) -> None:
    """One record batch each."""
    topic = topic_of(cluster, encoding, f"many-{encoding}")
    with Session(servers.zookeeper, client_name="tests", expects_cluster=True) as session:
        registry = SchemaRegistry(session)
        SchemaAdministration(session).set_compatibility(f"{topic}-value", Compatibility.NONE)
        for number in range(300):
            added = {"name": f"f{number}", "type": "int", "default": number}
            fields = [*json.loads(FLIGHT)["fields"], added]
            registry.register(
                f"{topic}-value", json.dumps({**json.loads(FLIGHT), "fields": fields})
            )
            publish(cluster, topic, [{**flights(number, 1)[0], f"f{number}": -number}])
    query = Query(servers, topic, flatten="true")
    with query.run() as run:
        rows = run.micro_batch()
    assert numbers(query) == list(range(300))
    assert [row["f299"] for row in rows] == [299] * 299 + [-299]
