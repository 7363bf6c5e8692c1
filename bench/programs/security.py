"""Costs of security: reads by Spark through TLS, beside Kafka's through TLS, and appends to a
broker that asks who sends them and decides by access rules, beside one that does not."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from bench.kit.appender import Appender, record_batch
from bench.kit.comparing import Compared, Comparing
from bench.kit.harness import cluster, drain, spark_session
from bench.kit.processes import exact_cpu_seconds
from bench.kit.program import Opening, Program
from bench.kit.result import LOGBUS, Metrics, Rounds
from bench.kit.rounds import CPU, SECONDS, in_turn, timed
from bench.kit.same import Rows, Same
from bench.kit.shapes import PARTITIONS, Shape
from bench.programs.spark.logs import KafkaLog, LogbusLog
from bench.servers.at_hand import at_hand
from bench.servers.kafka import Kafka, PemFiles, kafka
from bench.servers.logbus import Logbus
from bench.servers.starting import HOST
from bench.servers.systems import fresh_topic
from bench.servers.tuning import TUNED_SOURCE
from spark_logbus.client import ClientConfig, Cluster
from spark_logbus.coordination.security.access_rules import RuleRegistry
from spark_logbus.coordination.security.users import UserRegistry
from spark_logbus.security.acls import Rule
from spark_logbus.security.certificates import issue, new_authority
from spark_logbus.security.logins import PasswordLogin
from spark_logbus.security.profiles import FILE_VARIABLE
from spark_logbus.security.tls import ClientTls
from spark_logbus.zookeeper import Session

LOGBUS_PLAIN: Final = "logbus, plain TCP"
KAFKA: Final = "Kafka"
KAFKA_TUNED: Final = "Kafka, tuned"
OPEN, GUARDED = "open", "guarded"
#: One more broker that takes everybody: how much two alike differ.
OPEN_TOO: Final = "open, too"
ALL_COLUMNS, VALUE_ONLY = "all columns", "value only"
_USER: Final = PasswordLogin(user="bench", password="the benchmark's own")
_PROFILE: Final = "bench"
# As many as a company has; a topic's own, and prefixes that are all looked at.
_RULES: Final = (200, 20)
_CONNECTIONS: Final = 20
_MOST: Final = 500  # records in a record batch, of which as many requests are sent as is asked for


@dataclass
class Bench:
    """Flags, and the files of the servers that rows start."""

    args: argparse.Namespace
    pem: PemFiles


@dataclass(frozen=True)
class _Reader:
    name: str
    load: Callable[[bool], DataFrame]


@dataclass(frozen=True)
class ReadRow:
    """Batch reads through TLS; logbus's in the open as well, over TCP as from another machine."""

    title: str = "read through TLS, 200 bytes"
    unit: str = SECONDS

    def measure(self, bench: Bench) -> Iterator[tuple[str, Rounds]]:
        records, shape = bench.args.records, Shape()
        with ExitStack() as stack:
            ours = stack.enter_context(_encrypting(bench.pem))
            peer = at_hand(stack, KAFKA, lambda: kafka(flushed=False, tls=bench.pem))
            jars = () if peer is None else peer.connector
            spark = stack.enter_context(spark_session(jars=jars))
            topic = stack.enter_context(fresh_topic(ours, partitions=PARTITIONS))
            LogbusLog(ours).fill(topic, shape, records)
            own: dict[str, Mapping[str, str]] = {
                LOGBUS: {"profile": _PROFILE},
                LOGBUS_PLAIN: {"zookeeper": ours.address},
            }
            readers = [_of_logbus(spark, name, topic, each) for name, each in own.items()]
            if peer is not None:
                name = stack.enter_context(fresh_topic(peer, partitions=PARTITIONS))
                KafkaLog(peer).fill(name, shape, records)
                for kind, tuning in ((KAFKA, {}), (KAFKA_TUNED, dict(TUNED_SOURCE))):
                    readers.append(_of_kafka(spark, kind, name, peer, tuning))
            for what, whole in ((ALL_COLUMNS, True), (VALUE_ONLY, False)):
                same = Same()

                def read(
                    reader: _Reader, _: bool, *, whole: bool = whole, same: Same = same
                ) -> Metrics:
                    metrics = timed(lambda: drain(reader.load(whole)), records)
                    rows = Rows.of(reader.load(whole))
                    same.require(reader.name, rows)
                    Same(records).require(reader.name, rows.count)
                    return metrics

                yield f", {what}", in_turn(readers, read, rounds=bench.args.rounds)


def _of_logbus(spark: SparkSession, name: str, topic: str, options: Mapping[str, str]) -> _Reader:
    def load(whole: bool) -> DataFrame:
        reader = spark.read.format("logbus").options(**options)
        return (reader if whole else reader.schema("value binary")).load(topic)

    return _Reader(name, load)


def _of_kafka(
    spark: SparkSession, name: str, topic: str, peer: Kafka, tuning: Mapping[str, str]
) -> _Reader:
    def load(whole: bool) -> DataFrame:
        reader = spark.read.format("kafka").option("subscribe", topic).options(**tuning)
        rows = reader.options(**peer.encrypted_options).load()
        return rows if whole else rows.select("value")

    return _Reader(name, load)


@contextmanager
def _encrypting(pem: PemFiles) -> Iterator[Logbus]:
    """Runs a broker that encrypts, and names it in a profile."""
    tables = {"tls": {"certificate": str(pem.certificate), "key": str(pem.key), "port": 0}}
    with cluster(tcp_only=True, tables=tables) as running:
        profiles = pem.ca.parent / "profiles.toml"
        profiles.write_text(
            f'[{_PROFILE}]\nzookeeper = "{running.zookeeper}"\ntls_ca = "{pem.ca}"\n'
        )
        profiles.chmod(0o600)
        os.environ[FILE_VARIABLE] = str(profiles)
        config = ClientConfig(tls=ClientTls(ca=pem.ca.read_text()), local_sockets=False)
        with Cluster.from_zookeeper(running.zookeeper, config) as client:
            yield Logbus(running, client)


@dataclass(frozen=True)
class AppendRow:
    """Appends of record batches of one size, in turn, over TCP and acknowledged as written."""

    batch_records: int
    unit: str = SECONDS

    @property
    def title(self) -> str:
        return f"append, record batches of {self.batch_records}"

    def measure(self, bench: Bench) -> Iterator[tuple[str, Rounds]]:
        data = record_batch(records=self.batch_records, value_bytes=200)
        count = bench.args.requests * _MOST // max(_MOST, self.batch_records)
        with ExitStack() as stack:
            systems = _brokers(stack)
            for system in systems.values():
                system.create_topic("bench-0")
            appenders = {
                name: stack.enter_context(Appender(each.client, "bench-0", data, acks="written"))
                for name, each in systems.items()
            }

            def append(contender: _Named, _: bool) -> Metrics:
                [pid] = systems[contender.name].pids
                before, started = exact_cpu_seconds(pid), time.perf_counter()
                appenders[contender.name].requests(count, in_flight=5)
                took = time.perf_counter() - started
                return {SECONDS: took, CPU: exact_cpu_seconds(pid) - before}

            contenders = [_Named(name) for name in systems]
            yield "", in_turn(contenders, append, rounds=bench.args.append_rounds)


@dataclass(frozen=True)
class ConnectRow:
    """Connections that are made and handshaken, one after the other."""

    title: str = f"{_CONNECTIONS} connections"
    unit: str = SECONDS

    def measure(self, bench: Bench) -> Iterator[tuple[str, Rounds]]:
        data = record_batch(records=1, value_bytes=200)
        with ExitStack() as stack:
            systems = _brokers(stack)
            for system in systems.values():
                system.create_topic("bench-0")

            def connect(contender: _Named, _: bool) -> Metrics:
                client = systems[contender.name].client
                started = time.perf_counter()
                for _number in range(_CONNECTIONS):
                    with Appender(client, "bench-0", data, acks="written"):
                        pass
                return {SECONDS: time.perf_counter() - started}

            contenders = [_Named(name) for name in systems]
            yield "", in_turn(contenders, connect, rounds=bench.args.rounds)


@dataclass(frozen=True)
class _Named:
    name: str


def _brokers(stack: ExitStack) -> dict[str, Logbus]:
    """Runs brokers that take everybody, and one that knows users and has rules."""
    found = {}
    for name in (OPEN, OPEN_TOO):
        running = stack.enter_context(cluster(tcp_only=True))
        client = stack.enter_context(Cluster.from_zookeeper(running.zookeeper))
        found[name] = Logbus(running, client)
    tables = {"security": {"authenticate": True, "authorize": True}}
    guarded = stack.enter_context(cluster(tcp_only=True, tables=tables))
    with Session(guarded.zookeeper, client_name="bench") as session:
        UserRegistry(session).add(_USER.user, _USER.password, now_us=1)
        RuleRegistry(session).add(_rules())
    config = ClientConfig(login=_USER)
    known = stack.enter_context(Cluster.from_zookeeper(guarded.zookeeper, config))
    return {**found, GUARDED: Logbus(guarded, known)}


def _rules() -> list[Rule]:
    topics, prefixes = _RULES
    who = f"user:{_USER.user}"
    return [
        Rule("topic", "bench-0", who, "all"),
        *(Rule("topic", f"topic-{number}", who, "read") for number in range(topics)),
        *(Rule("topic", f"bench-{number}*", "user:another", "write") for number in range(prefixes)),
    ]


def open_bench(opening: Opening) -> Bench:
    """Makes an authority and a certificate; each row starts what it needs."""
    args, _, stack, _ = opening
    own = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="logbus-bench-ca-")))
    authority = new_authority("bench", days=1)
    pair = issue(authority, "broker", hosts=[HOST], days=1)
    pem = PemFiles(own / "ca.pem", own / "broker.pem", own / "broker.key")
    pem.ca.write_text(authority.certificate)
    pem.certificate.write_text(pair.certificate)
    pem.key.write_text(pair.key)
    return Bench(args, pem)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds how much is read and appended."""
    parser.add_argument("--records", type=int, default=2_000_000, help="that are read")
    parser.add_argument("--requests", type=int, default=1_000, help="appends in a round")
    parser.add_argument("--append-rounds", type=int, default=30)


PROGRAM: Final = Program(
    name="security",
    description=__doc__,
    rows={
        "read-tls": ReadRow(),
        "append-1": AppendRow(1),
        "append-500": AppendRow(500),
        "append-5000": AppendRow(5_000),
        "connect": ConnectRow(),
    },
    open_bench=open_bench,
    comparing=Comparing(
        {SECONDS: "", CPU: "CPU"},
        own=f"{LOGBUS}|{GUARDED}|{OPEN_TOO}",
        goals={
            **{
                Compared("read-tls", what, LOGBUS, peer): 1.5
                for what in (ALL_COLUMNS, VALUE_ONLY)
                for peer in (KAFKA, KAFKA_TUNED)
            },
            Compared("append-1", "", GUARDED, OPEN): 0.98,
            Compared("append-500", "", GUARDED, OPEN): 0.98,
            Compared("append-5000", "", GUARDED, OPEN): 0.98,
        },
    ),
    add_flags=add_flags,
    packages=("pyspark", "pyarrow", "confluent-kafka"),
)
