"""Three brokers with replicas: secured while they run, and secured when one of them dies."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pytest

from spark_logbus.client import (
    Admin,
    ClientConfig,
    Cluster,
    Consumer,
    ConsumerConfig,
    Producer,
    RangeReader,
)
from spark_logbus.coordination import paths
from spark_logbus.coordination.payloads import PartitionState, decode
from spark_logbus.coordination.security.access_rules import RuleRegistry
from spark_logbus.coordination.security.users import UserRegistry
from spark_logbus.errors import LogbusError
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.security.acls import Rule
from spark_logbus.security.logins import PasswordLogin
from spark_logbus.security.tls import ClientTls
from spark_logbus.zookeeper import Session
from tests.helpers import wait_until
from tests.servers.certificates import Authority
from tests.servers.zookeeper import read

IDS: Final = (1, 2, 3)
T0 = TopicPartition("t", 0)
ETL = PasswordLogin(user="etl", password="etl's password")
ADMIN = PasswordLogin(user="admin", password="the admin's")
Tables = Mapping[str, Mapping[str, Any]]


class Three:
    """Brokers 1 to 3, each secured as far as it was last started."""

    def __init__(self, directory: Path, zookeeper: str) -> None:
        self.zookeeper = zookeeper
        self._directory = directory
        self._authority = Authority(directory / "ca")
        self.processes: dict[int, BrokerProcess] = {}

    @property
    def open(self) -> Tables:
        """Settings of the first round: who proves nothing is taken, encrypted or not."""
        files = self._authority.files("broker", "127.0.0.1")
        tls = {
            "certificate": str(files.certificate),
            "key": str(files.key),
            "client_ca": str(self._authority.ca_file),
            "port": 0,
        }
        return {"tls": tls, "security": {"authenticate": True, "anonymous": True}}

    @property
    def closed(self) -> Tables:
        """Settings of the second round."""
        security = {"authenticate": True, "authorize": True, "super_principals": ["user:admin"]}
        return {"tls": {**self.open["tls"], "only": True}, "security": security}

    def start(self, settings: Tables, *brokers: int) -> None:
        """Starts the brokers, or starts them anew, with these settings."""
        common: Tables = {
            "broker": {"zookeeper_session_ms": 1_000},
            # They are to meet as on three machines.
            "network": {"local_socket": False},
            "moves": {"reserve_bytes": 0},
            "replication": {"lag_max_ms": 3_000},
        }
        for each in brokers:
            if each in self.processes:
                self.processes[each].stop()
            self.processes[each] = BrokerProcess(
                each,
                self._directory / str(each),
                zookeeper=self.zookeeper,
                settings={**common, **settings},
            )
            self.processes[each].launch()
        for each in brokers:
            self.processes[each].wait_until_ready()

    def stop(self) -> None:
        for each in self.processes.values():
            each.ask_to_stop()
        for each in self.processes.values():
            each.stop()

    def connect(self, login: PasswordLogin | None) -> Cluster:
        """Connects as a user over TLS, or as nobody without it."""
        tls = None if login is None else ClientTls(ca=self._authority.ca)
        config = ClientConfig(client_id="test", tls=tls, login=login, retry_backoff_max_ms=200)
        return Cluster.from_zookeeper(self.zookeeper, config)

    def state(self) -> PartitionState:
        path = paths.partition_state(T0)
        return decode(PartitionState, read(self.zookeeper, path), path=path)

    def wait_until_in_sync(self, *brokers: int) -> None:
        wait_until(lambda: sorted(self.state().in_sync) == sorted(brokers), message="sync")

    def add_users(self) -> None:
        with Session(self.zookeeper, client_name="test") as session:
            for each in (ETL, ADMIN):
                UserRegistry(session).add(each.user, each.password, now_us=1)
            RuleRegistry(session).add(
                [Rule("topic", "t", "user:etl", each) for each in ("read", "write")]
            )

    def values(self, end: int) -> list[bytes]:
        """Returns the values of the first records, read as the user."""
        with self.connect(ETL) as cluster:
            return [
                value
                for each in RangeReader(cluster, OffsetRange(T0, 0, end))
                for value in each.arrow_batch.column("value").to_pylist()
            ]


class Sending(threading.Thread):
    """Sends one record after the other, each acknowledged, until it is ended."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(name=name)
        self._cluster = cluster
        self._end = threading.Event()
        self.acknowledged: list[tuple[int | None, bytes]] = []
        self.failure: LogbusError | None = None

    def run(self) -> None:
        number = 0
        try:
            with Producer(self._cluster) as producer:
                while not self._end.is_set():
                    value = f"{self.name}-{number}".encode()
                    offset = producer.send("t", value, partition=0).result(120).offset
                    self.acknowledged.append((offset, value))
                    number += 1
        except LogbusError as error:
            self.failure = error

    def goes_on(self) -> bool:
        """Waits for one more record; true when it was acknowledged."""
        before = len(self.acknowledged)
        wait_until(lambda: self.failure is not None or len(self.acknowledged) > before)
        return self.failure is None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self.join()


@pytest.fixture
def three(tmp_path: Path, chroot: str) -> Iterator[Three]:
    found = Three(tmp_path, chroot)
    yield found
    found.stop()


@pytest.mark.long
def test_a_live_cluster_is_secured_broker_by_broker(three: Three) -> None:
    three.start({}, *IDS)
    with three.connect(None) as cluster:
        Admin(cluster).create_topic("t", partitions=1, replicas=3)
    three.wait_until_in_sync(*IDS)
    with three.connect(None) as cluster, Sending(cluster, "open") as nobody:
        for each in IDS:
            three.start(three.open, each)
            three.wait_until_in_sync(*IDS)
            assert nobody.goes_on(), nobody.failure
        three.add_users()
        with three.connect(ETL) as own, Sending(own, "closed") as etl:
            assert etl.goes_on(), etl.failure
            assert nobody.goes_on(), nobody.failure
            nobody.__exit__(None, None, None)
            for each in IDS:
                three.start(three.closed, each)
                three.wait_until_in_sync(*IDS)
                assert etl.goes_on(), etl.failure
    with pytest.raises(LogbusError), three.connect(None) as cluster:
        Admin(cluster).topics()
    sent = dict(nobody.acknowledged + etl.acknowledged)
    assert sent.keys() == {*range(len(sent))}
    assert three.values(len(sent)) == [sent[each] for each in range(len(sent))]


def test_a_leader_of_a_secured_cluster_dies(three: Three) -> None:
    three.add_users()
    three.start(three.closed, *IDS)
    with three.connect(ADMIN) as cluster:
        Admin(cluster).create_topic("t", partitions=1, replicas=3)
    three.wait_until_in_sync(*IDS)
    read_values: list[bytes] = []
    with (
        three.connect(ETL) as cluster,
        Consumer(cluster, ConsumerConfig(group="g", start="earliest")) as consumer,
        Sending(cluster, "record") as sending,
    ):
        consumer.subscribe(["t"])

        def has_read(least: int) -> bool:
            read_values.extend(each.value for each in consumer.poll(0.1) if each.value is not None)
            return len(read_values) >= least

        wait_until(lambda: has_read(1))
        leader = three.state().leader
        three.processes[leader].kill()
        three.wait_until_in_sync(*({*IDS} - {leader}))
        assert sending.goes_on(), sending.failure
        three.start(three.closed, leader)
        three.wait_until_in_sync(*IDS)
        assert sending.goes_on(), sending.failure
        sending.__exit__(None, None, None)
        wait_until(lambda: has_read(len(sending.acknowledged)))
        consumer.commit()
        assert consumer.committed([T0]) == {T0: len(read_values)}
    assert read_values == [value for _, value in sending.acknowledged]
