"""Kafka in KRaft mode with its own defaults, and the jars of Spark's Kafka source: one broker, or
several and a controller."""

from __future__ import annotations

import base64
import importlib.util
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.servers import ServerUnavailableError
from bench.servers.artifacts import jars_of
from bench.servers.kafka_producer import KafkaProducer
from bench.servers.starting import (
    HOST,
    START_DEADLINE_S,
    STOP_GRACE_S,
    free_ports,
    wait_until_ready,
)
from spark_logbus.errors import EmbeddedServerError, JavaNotFoundError
from spark_logbus.local.java import java_executable
from spark_logbus.local.processes import spawn, stop

_HERE = Path(__file__).resolve().parent
_REQUEST_DEADLINE_S = 30.0

# Kafka's ids of clusters are 16 bytes in base64.
_CLUSTER_ID = base64.urlsafe_b64encode(b"logbus-benchmark").decode().rstrip("=")

# As bin/kafka-server-start.sh and kafka-run-class.sh start a broker.
_JVM_OPTIONS = (
    "-Xms1G", "-Xmx1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)  # fmt: skip

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@{host}:{controller_port}
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""
_CONTROLLER_ID = 100
_OF_CLUSTER = """\
process.roles={role}
node.id={node}
listeners={name}://{host}:{port}
controller.listener.names=CONTROLLER
controller.quorum.voters={controller}@{host}:{controller_port}
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor={brokers}
transaction.state.log.replication.factor={brokers}
transaction.state.log.min.isr=1
broker.session.timeout.ms={session_ms}
broker.heartbeat.interval.ms={heartbeat_ms}
"""
_HEARTBEATS_A_SESSION = 5  # as by default: 9 s and 2 s, about
_ENCRYPTED = """\
listeners=PLAINTEXT://{host}:{port},SSL://{host}:{tls_port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port},SSL://{host}:{tls_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
ssl.truststore.type=PEM
ssl.truststore.location={ca}
"""
# Kafka leaves flushes to the operating system by default, also those of what is acknowledged.
_FLUSH_EACH_APPEND = "log.flush.interval.messages=1\n"


@dataclass(frozen=True)
class PemFiles:
    """An authority, and a certificate that it has signed for this machine, with its key."""

    ca: Path
    certificate: Path
    key: Path


class KafkaProcess:
    """The broker's process, which can be started again on what it keeps. For one thread."""

    def __init__(self, command: Sequence[str], *, port: int, output: Path) -> None:
        self._command = command
        self._port = port
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "it has not been started"
        return self._process.pid

    def start(self) -> None:
        self._process = spawn(self._command, output=self._output)
        wait_until_ready("Kafka", self._process, port=self._port, output=self._output)

    def stop(self) -> None:
        if self._process is not None:
            stop(self._process, STOP_GRACE_S)

    def kill(self) -> None:
        """SIGKILL: what a crash of the process does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@dataclass(frozen=True)
class Kafka:
    """A running broker. Thread-safe."""

    bootstrap: str
    connector: Sequence[Path]
    """Jars that a Spark session needs for ``format("kafka")``."""
    data: Path
    """Where it keeps its partitions, each in a folder ``<topic>-<number>``."""
    version: str
    process: KafkaProcess
    replicas: int = 1
    """Copies of each partition."""
    processes: Mapping[int, KafkaProcess] = field(default_factory=dict)
    """Brokers by their ids, where there are several."""
    all_data: Sequence[Path] = ()
    encrypted_options: Mapping[str, str] = field(default_factory=dict)
    """Returns the options of Spark's connector, for the encrypted port where there is one."""

    batch_prefix: struct.Struct = struct.Struct(">qi")

    @property
    def address(self) -> str:
        return self.bootstrap

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 1,
        flushed: bool = False,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Creates a topic; with ``flushed`` each append is on the disk before its answer."""
        from confluent_kafka.admin import NewTopic

        own = {"flush.messages": "1"} if flushed else {}
        if self.replicas > 1:
            own["min.insync.replicas"] = "2"
        admin = self._admin()  # must live until its futures are done
        new = NewTopic(topic, partitions, self.replicas, config={**own, **(config or {})})
        _wait_for(admin.create_topics([new]))

    def delete_topic(self, topic: str) -> None:
        admin = self._admin()
        _wait_for(admin.delete_topics([topic]))

    def ends(self, topic: str, *, partitions: int) -> list[int]:
        """Returns up to where consumers see each partition."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "bench"})
        try:
            return [
                consumer.get_watermark_offsets(
                    TopicPartition(topic, number), timeout=_REQUEST_DEADLINE_S
                )[1]
                for number in range(partitions)
            ]
        finally:
            consumer.close()

    def server(self, broker_id: int) -> KafkaProcess:
        return self.processes[broker_id]

    def leader(self, topic: str) -> int:
        """Returns the id of the broker that leads the only partition."""
        return int(self._partition(topic).leader)

    def in_sync(self, topic: str) -> int:
        """Counts the replicas of the only partition that have all that is acknowledged."""
        return len(self._partition(topic).isrs)

    @contextmanager
    def sender(self, topic: str) -> Iterator[Callable[[], None]]:
        """Yields a function that sends a record, and returns when all in sync have it."""
        producer = KafkaProducer(self.bootstrap, acks="all", linger_ms=0)

        def send() -> None:
            producer.send(topic, [(b"x",)])
            producer.flush()

        yield send

    def _partition(self, topic: str) -> Any:
        return (
            self._admin()
            .list_topics(topic, timeout=_REQUEST_DEADLINE_S)
            .topics[topic]
            .partitions[0]
        )

    def _admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 3})


def _wait_for(futures: dict[str, Any]) -> None:
    for future in futures.values():
        future.result(timeout=_REQUEST_DEADLINE_S)


@contextmanager
def kafka(
    *, flushed: bool, directory: Path | None = None, tls: PemFiles | None = None
) -> Iterator[Kafka]:
    """Runs a fresh broker, gone afterwards; what it keeps is below ``directory``, or where
    temporary files are.

    With ``flushed`` it flushes each append before it acknowledges it; without, it leaves that to
    the operating system. With ``tls`` it has a port that encrypts, too. Raises
    ServerUnavailableError, and EmbeddedServerError if it does not
    start.
    """
    program = _program()
    connector = jars_of(_HERE / "kafka-connector.xml")
    with tempfile.TemporaryDirectory(prefix="logbus-bench-kafka-", dir=directory) as name:
        own = Path(name)
        data = own / "data"
        port, controller_port, tls_port = free_ports(3)
        properties = _PROPERTIES.format(
            host=HOST, port=port, controller_port=controller_port, data=data
        )
        if flushed:
            properties += _FLUSH_EACH_APPEND
        if tls is not None:
            keystore = own / "keystore.pem"
            keystore.write_text(tls.key.read_text() + tls.certificate.read_text())
            properties += _ENCRYPTED.format(
                host=HOST, port=port, controller_port=controller_port, tls_port=tls_port,
                keystore=keystore, ca=tls.ca,
            )  # fmt: skip
        process = program.prepare(own, properties, port=port)
        try:
            process.start()
            yield Kafka(
                bootstrap=f"{HOST}:{port}",
                connector=connector,
                data=data,
                version=_version(program.jars),
                process=process,
                encrypted_options={} if tls is None else _encrypted_options(tls, tls_port),
            )
        finally:
            process.stop()


@contextmanager
def kafka_cluster(*, brokers: int, session_ms: int) -> Iterator[Kafka]:
    """Runs fresh brokers, and a controller for them, with as many replicas of each partition.

    A broker counts as gone when it has been silent for ``session_ms``. Raises
    ServerUnavailableError, and EmbeddedServerError if one does not start.
    """
    program = _program()
    with ExitStack() as stack:
        own = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="logbus-bench-kafka-")))
        controller_port, *ports = free_ports(1 + brokers)

        def start(node: int, port: int, role: str) -> KafkaProcess:
            directory = own / str(node)
            directory.mkdir()
            text = _OF_CLUSTER.format(
                role=role, node=node, host=HOST, port=port,
                name="PLAINTEXT" if role == "broker" else "CONTROLLER",
                controller=_CONTROLLER_ID, controller_port=controller_port,
                data=directory / "data", brokers=brokers,
                session_ms=session_ms, heartbeat_ms=session_ms // _HEARTBEATS_A_SESSION,
            )  # fmt: skip
            process = program.prepare(directory, text, port=port)
            stack.callback(process.stop)
            process.start()
            return process

        start(_CONTROLLER_ID, controller_port, "controller")
        processes = {node: start(node, port, "broker") for node, port in enumerate(ports, start=1)}
        data = [own / str(node) / "data" for node in processes]
        yield Kafka(
            bootstrap=",".join(f"{HOST}:{port}" for port in ports),
            connector=(),
            data=data[0],
            version=_version(program.jars),
            process=processes[1],
            replicas=brokers,
            processes=processes,
            all_data=data,
        )


@dataclass(frozen=True)
class _Program:
    """Kafka's server, as it is started here."""

    command: Sequence[str]
    jars: Sequence[Path]

    def prepare(self, directory: Path, properties: str, *, port: int) -> KafkaProcess:
        """Formats the storage of a server with these properties."""
        path = directory / "server.properties"
        path.write_text(properties)
        formatting = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(path)]
        _run([*self.command, *formatting])
        return KafkaProcess(
            [*self.command, "kafka.Kafka", str(path)], port=port, output=directory / "kafka.out"
        )


def _encrypted_options(tls: PemFiles, port: int) -> Mapping[str, str]:
    return {
        "kafka.bootstrap.servers": f"{HOST}:{port}",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(tls.ca),
    }


def _program() -> _Program:
    """Raises ServerUnavailableError where something lacks for it."""
    if importlib.util.find_spec("confluent_kafka") is None:
        raise ServerUnavailableError(
            "The Python package confluent-kafka is not installed; "
            ".venv/bin/python -m pip install -c constraints.txt confluent-kafka brings it."
        )
    try:
        java = java_executable()
    except JavaNotFoundError as error:
        raise ServerUnavailableError(str(error)) from error
    jars = jars_of(_HERE / "kafka-server.xml")
    return _Program([str(java), *_JVM_OPTIONS, "-cp", ":".join(map(str, jars))], jars)


def _version(jars: Sequence[Path]) -> str:
    return next(jar.stem.split("-")[1] for jar in jars if jar.name.startswith("kafka_2.13-"))


def _run(command: list[str]) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=START_DEADLINE_S)
    if ended.returncode != 0:
        raise EmbeddedServerError(
            f"Kafka's storage cannot be formatted: {ended.stdout}{ended.stderr}"
        )
