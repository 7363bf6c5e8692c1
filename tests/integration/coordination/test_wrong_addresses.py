"""An address at which there is no logbus cluster: who gives it learns at once what is there."""

from __future__ import annotations

import http.server
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_logbus.client import Bootstrap
from spark_logbus.errors import CoordinationError, ZooKeeperAddressError
from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from spark_logbus.zookeeper import Session, SessionState
from tests.helpers import frozen, wait_until
from tests.servers.cluster import Logbus
from tests.servers.ports import refusing_address

ROOM_MS = 120_000  # to wait in, for who does not know better


@pytest.fixture
def refusing() -> Iterator[str]:
    with refusing_address() as address:
        yield address


@pytest.fixture
def silent() -> Iterator[str]:
    """Takes connections into its queue, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """pytest wants no output."""


@pytest.fixture
def web() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def refusal(connect: str) -> str:
    """Returns the error of a client that has time, and does not take it."""
    session = Session(connect, client_name="test", connect_timeout_ms=ROOM_MS, expects_cluster=True)
    with pytest.raises(ZooKeeperAddressError) as refused:
        session.start()
    assert session.state is SessionState.CLOSED
    return str(refused.value)


def test_an_address_that_stays_wrong_is_not_tried_again(web: str, refusing: str) -> None:
    for connect, stays in ((web, True), (refusing, False), (f"{refusing},{web}", False)):
        session = Session(
            connect, client_name="test", connect_timeout_ms=ROOM_MS, expects_cluster=True
        )
        with pytest.raises(ZooKeeperAddressError) as refused:
            session.start()
        assert refused.value.retriable is not stays


def test_nothing_listens(refusing: str) -> None:
    told = refusal(refusing)
    assert told.startswith(f"Nothing listens at {refusing} (connection refused).")
    assert "LOGBUS_ZOOKEEPER" in told


def test_there_is_no_such_host() -> None:
    assert re.match(
        r"(There is no host|Host) no-such-host\.invalid( cannot be looked up|\. )",
        refusal("no-such-host.invalid:2181"),
    )


@pytest.mark.long
def test_another_server_answers(web: str, logbus: Logbus) -> None:
    assert refusal(web).startswith(f"An HTTP server answers at {web}, not ZooKeeper.")
    broker = logbus.cluster.brokers[0]
    told = refusal(f"{broker.host}:{broker.port}")
    assert told.startswith(f"A logbus broker answers at {broker.host}:{broker.port}, not Zoo")


@pytest.mark.long
def test_each_of_several_servers_is_named(refusing: str, web: str) -> None:
    told = refusal(f"{refusing},{web}")
    assert told.startswith(f"Nothing listens at {refusing} (connection refused); an HTTP server")


def test_one_good_server_is_enough(refusing: str, chroot: str) -> None:
    connect = f"{refusing},no-such-host.invalid:2181,{chroot}"
    with Session(connect, client_name="test", expects_cluster=True) as session:
        assert session.state is SessionState.CONNECTED


def test_there_is_no_such_chroot_and_it_is_not_made(chroot: str) -> None:
    with Session(f"{chroot}/there/deeper", client_name="a broker"):
        pass
    server, _, path = chroot.partition("/")
    for _ in range(2):
        told = refusal(f"{chroot}/there/other/still")
        assert told.startswith(f"ZooKeeper at {server} has no such chroot: /{path}/there/other/st")
        assert f"There is /{path}/there/deeper." in told


def test_the_default_address_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another default than that of users: on this machine, something may listen there."""
    monkeypatch.setattr(
        "spark_logbus.zookeeper.connect_string.DEFAULT_CONNECT", "x.invalid:1/logbus"
    )
    told = refusal("x.invalid:1")
    assert "'logbus up'" in told
    assert "export LOGBUS_ZOOKEEPER=" in told


@pytest.mark.long
def test_who_must_wait_is_told_what_for_once(silent: str, caplog: pytest.LogCaptureFixture) -> None:
    reason = f"{silent} takes connections and does not answer"
    session = Session(silent, client_name="test", connect_timeout_ms=6_000, expects_cluster=True)
    with caplog.at_level(logging.WARNING), pytest.raises(CoordinationError, match=reason) as failed:
        session.start()
    assert not isinstance(failed.value, ZooKeeperAddressError)
    told = [record.getMessage() for record in caplog.records if reason in record.getMessage()]
    assert told == [f"test is waiting for ZooKeeper: {reason}."]


@pytest.mark.long
def test_a_broker_waits_for_a_server_that_is_not_there_yet(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = EmbeddedZooKeeper(tmp_path / "zookeeper", heap_mb=64)
    with server:
        address = server.address
    with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.WARNING):
        session = Session(address, client_name="broker-1", connect_timeout_ms=ROOM_MS)
        started = pool.submit(session.start)
        told = f"broker-1 is waiting for ZooKeeper: nothing listens at {address} (connection ref"
        wait_until(lambda: told in caplog.text)
        assert not started.done()
        with server:
            started.result(60)
            session.close()


def test_a_client_waits_for_a_server_that_stands_still(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path / "zookeeper", heap_mb=64) as server:
        with Session(server.address, client_name="a broker"):
            pass
        with frozen(server.pid):
            session = Session(
                server.address, client_name="test", connect_timeout_ms=ROOM_MS,
                expects_cluster=True,
            )  # fmt: skip
            with ThreadPoolExecutor(1) as pool:
                started = pool.submit(session.start)
                looked = f"logbus-look-at-{server.address}"
                wait_until(lambda: looked in {one.name for one in threading.enumerate()})
                assert not started.done()
                os.kill(server.pid, signal.SIGCONT)
                started.result(60)
            session.close()


def test_a_client_of_python_learns_it(refusing: str) -> None:
    with pytest.raises(ZooKeeperAddressError, match="Nothing listens at"):
        Bootstrap.from_zookeeper(f"{refusing}/logbus")


@pytest.mark.long
def test_spark_names_the_reason_within_seconds(spark: SparkSession, refusing: str) -> None:
    reader = spark.read.format("logbus").option("subscribe", "t")
    with pytest.raises(PySparkException) as failed:
        reader.option("zookeeper", refusing).load()
    found = re.search(r"Looking up the topics has failed for (\d+) s; (.*)", str(failed.value))
    assert found is not None, failed.value
    assert int(found[1]) < 15  # of the 30 that a cluster gets that may be there
    assert found[2].startswith(f"the last fault was: Nothing listens at {refusing} (connection")
    with pytest.raises(PySparkException, match=r"Planning the read has failed for \d+ s; the last"):
        reader.option("zookeeper", refusing).schema("value binary").load().count()
