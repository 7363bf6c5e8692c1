"""``logbus cluster`` and completion, with brokers that run, are stopped, and do not answer."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_logbus import __version__
from spark_logbus.client import Admin, Bootstrap, ClientConfig, Cluster
from spark_logbus.coordination.cluster.brokers import BrokerRegistry
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.zookeeper import Session
from tests.helpers import frozen, wait_until, without_waiting
from tests.servers.broker import broker_process
from tests.servers.cluster import Logbus
from tests.servers.ports import refusing_address, reserved_port

LOGBUS = [sys.executable, "-m", "spark_logbus.cli"]


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run([*LOGBUS, *words], capture_output=True, text=True, timeout=60, env=env)


@pytest.mark.long
def test_a_cluster_is_healthy_until_a_broker_is_away(tmp_path: Path, chroot: str) -> None:
    with (
        broker_process(tmp_path / "1", chroot, broker_id=1),
        broker_process(tmp_path / "2", chroot, broker_id=2) as second,
    ):
        wait_until(lambda: len(Bootstrap.from_zookeeper(chroot).brokers) == 2)
        with Cluster.from_zookeeper(chroot) as cluster:
            Admin(cluster).create_topic("t", partitions=4)
        well = run("cluster", "-z", chroot)
        assert (well.returncode, without_waiting(well.stderr)) == (0, "")
        row = rf"2 +{re.escape(str(second.address))} +{re.escape(__version__)} +\S+Z +2 +0 +0 +ok\n"
        assert re.search(row, well.stdout)
        assert well.stdout.endswith("Healthy: 2 brokers, 1 topic, 4 partitions, 0 B.\n")
        second.stop()
        ill = run("cluster", "-z", chroot)
        assert ill.returncode == 1
        assert re.search(r"2 +- +- +- +2 +2 +0 +not running\n", ill.stdout)
        assert "Not healthy: broker 2 is not running; 2 of 4 partitions offline: t-" in ill.stdout
        told = json.loads(run("cluster", "-z", chroot, "--json").stdout)
        assert (told["healthy"], told["topics"], told["partitions"]) == (False, 1, 4)
        assert [each["leader"] for each in told["offline"]] == [2, 2]
        assert told["brokers"][1]["problem"] == "not running"


def test_a_cluster_is_not_healthy_while_moves_wait_for_a_broker_that_is_away(
    tmp_path: Path, chroot: str
) -> None:
    with broker_process(tmp_path, chroot, broker_id=1), Cluster.from_zookeeper(chroot) as cluster:
        admin = Admin(cluster)
        admin.create_topic("t", partitions=2)
        with reserved_port() as port, Session(chroot, client_name="test") as session:
            BrokerRegistry(session).register(BrokerAddress(2, "127.0.0.1", port), version="test")
            wait_until(lambda: len(Bootstrap.from_zookeeper(chroot).brokers) == 2)
            admin.move_partitions({TopicPartition("t", each): 2 for each in (0, 1)})
        wait_until(lambda: len(Bootstrap.from_zookeeper(chroot).brokers) == 1)
        wait_until(lambda: len(admin.describe_moves()) == 2)
        ill = run("cluster", "-z", chroot)
        assert ill.returncode == 1
        assert re.search(r"2 +- +- +- +0 +0 +0 +not running\n", ill.stdout)
        assert (
            "Not healthy: broker 2 is not running; 2 moves waiting for broker 2. There are"
            in ill.stdout
        )
        told = json.loads(run("cluster", "-z", chroot, "--json").stdout)
        assert told["waiting"] == [{"broker": 2, "moves": 2}]
        admin.cancel_moves(TopicPartition("t", each) for each in (0, 1))
        wait_until(lambda: admin.describe_cluster().healthy)


def test_a_broker_that_is_gone_is_forgotten_when_it_leads_nothing(
    tmp_path: Path, chroot: str
) -> None:
    with broker_process(tmp_path / "1", chroot, broker_id=1):
        with broker_process(tmp_path / "2", chroot, broker_id=2):
            wait_until(lambda: len(Bootstrap.from_zookeeper(chroot).brokers) == 2)
            with Cluster.from_zookeeper(chroot) as cluster:
                Admin(cluster).create_topic("t", partitions=4)
            lives = run("cluster", "forget", "2", "--execute", "-z", chroot)
            assert lives.returncode == 1
            assert "Broker 2 lives, at 127.0.0.1:" in lives.stderr
        leads = run("cluster", "forget", "2", "--execute", "-z", chroot)
        assert leads.returncode == 1
        assert re.search(r"Broker 2 leads t-\d, t-\d, which nobody serves", leads.stderr)
        for remedy in ("logbus topics give-up", "logbus cluster drain 2", "logbus topics move"):
            assert remedy in leads.stderr
        with Cluster.from_zookeeper(chroot) as cluster:
            Admin(cluster).delete_topic("t")
        with Session(chroot, client_name="test") as session:
            left = f"{session.connect.chroot}/brokers/ids/2"
            session.call("test", lambda c: c.create_async(left, b"{}"), session.deadline())
            dry = run("cluster", "forget", "2", "-z", chroot)
            assert "Dry run: broker 2 leads nothing, and its registration would" in dry.stdout
            done = run("cluster", "forget", "2", "-x", "-z", chroot)
            assert done.stdout == "Broker 2 is forgotten: its registration is removed.\n"
        again = run("cluster", "forget", "2", "-z", chroot)
        assert (again.returncode, "there is nothing to forget" in again.stdout) == (0, True)
        assert run("cluster", "-z", chroot).returncode == 0


# So that a broker that hangs stays registered.
LASTING: dict[str, dict[str, Any]] = {"broker": {"zookeeper_session_ms": 60_000}}


@pytest.fixture
def two_brokers(tmp_path: Path, chroot: str) -> Iterator[list[BrokerProcess]]:
    """Brokers that lead two partitions of a topic each."""
    with (
        broker_process(tmp_path / "1", chroot, broker_id=1, settings=LASTING) as first,
        broker_process(tmp_path / "2", chroot, broker_id=2, settings=LASTING) as second,
    ):
        wait_until(lambda: len(Bootstrap.from_zookeeper(chroot).brokers) == 2)
        with Cluster.from_zookeeper(chroot) as cluster:
            Admin(cluster).create_topic("t", partitions=4)
        yield [first, second]


def test_a_broker_that_hangs_is_described_as_silent(
    two_brokers: list[BrokerProcess], chroot: str
) -> None:
    patience = ClientConfig(connect_timeout_ms=2_000)
    with Cluster.from_zookeeper(chroot, patience) as cluster:
        admin = Admin(cluster)
        wait_until(lambda: admin.describe_cluster().healthy)
        with frozen(two_brokers[1].pid):
            first, second = admin.describe_cluster().brokers
            assert (second.offline, second.partitions) == (2, 2)
            silent = f"does not answer: broker 2 at {two_brokers[1].address} did not answer a "
            assert (second.problem or "").startswith(silent)
            assert first.registration is not None
            assert second.registration is not None
        wait_until(lambda: admin.describe_cluster().healthy)


@pytest.mark.long
def test_a_broker_that_hangs_is_told_and_the_rest_is_shown(
    two_brokers: list[BrokerProcess], chroot: str
) -> None:
    with frozen(two_brokers[1].pid):
        ill = run("cluster", "-z", chroot)
    assert (ill.returncode, without_waiting(ill.stderr)) == (1, "")
    assert re.search(r"1 +\S+ +\S+ +\S+Z +2 +0 +0 +ok\n", ill.stdout)
    silent = f"does not answer: broker 2 at {re.escape(two_brokers[1].address)} did not answer a"
    assert re.search(rf"2 +\S+ +\S+ +\S+Z +2 +2 +0 +{silent}", ill.stdout)
    assert "Not healthy: broker 2 has a problem; 2 of 4 partitions offline: t-" in ill.stdout


@pytest.mark.long
def test_brokers_that_all_hang_are_told(tmp_path: Path, chroot: str) -> None:
    with broker_process(tmp_path, chroot, settings=LASTING) as broker:
        with frozen(broker.pid):
            told = run("cluster", "-z", chroot)
        assert (told.returncode, told.stdout) == (1, "")
        assert "Error: No broker answers." in told.stderr
        assert f"at {broker.address} did not answer" in told.stderr


def completed(line: str, word: int, **environment: str) -> subprocess.CompletedProcess[str]:
    return run(_LOGBUS_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(word),
               **environment)  # fmt: skip


@pytest.mark.long
def test_a_shell_completes_topics_and_groups(tmp_path: Path, chroot: str) -> None:
    with broker_process(tmp_path, chroot), Cluster.from_zookeeper(chroot) as cluster:
        admin = Admin(cluster)
        for name in ("orders", "orders-eu", "payments"):
            admin.create_topic(name, partitions=1)
        admin.rewind("warehouse", "earliest", topics=["orders"], execute=True)
        topics = completed("logbus consume ord", 2, LOGBUS_ZOOKEEPER=chroot)
        assert topics.stdout.split() == ["orders", "orders-eu"]
        given = completed(f"logbus topics describe -z {chroot} pay", 5)
        assert given.stdout.split() == ["payments"]
        groups = completed("logbus groups describe w", 3, LOGBUS_ZOOKEEPER=chroot)
        assert groups.stdout.split() == ["warehouse"]


def test_completion_is_silent_without_a_cluster() -> None:
    with refusing_address() as address:
        done = completed("logbus consume o", 2, LOGBUS_ZOOKEEPER=f"{address}/logbus")
    assert (done.stdout.strip(), done.stderr) == ("", "")


@pytest.mark.long
def test_bench_tells_rates_and_leaves_no_topic_of_its_own(tmp_path: Path, chroot: str) -> None:
    with broker_process(tmp_path, chroot), Cluster.from_zookeeper(chroot) as cluster:
        done = run("bench", "-n", "2000", "-s", "50", "-p", "2", "-z", chroot, "--json")
        sent, read = map(json.loads, done.stdout.splitlines())
        assert (done.returncode, sent["records"], read["records"]) == (0, 2000, 2000)
        assert 0 < sent["p50_ms"] <= sent["p99_ms"]
        assert min(sent["records_per_s"], read["mb_per_s"]) > 0
        admin = Admin(cluster)
        assert admin.topics() == []
        admin.create_topic("mine", partitions=1)
        assert run("bench", "-t", "mine", "-n", "10", "-z", chroot).returncode == 0
        assert run("bench", "-t", "mine", "-n", "5", "-z", chroot).stdout.count(" 5 ") == 2
        [partition] = admin.describe(["mine"])["mine"].partitions.values()
        assert partition.ends is not None
        assert partition.ends.high_watermark == 15


def test_a_list_whose_reader_has_enough_ends_well(logbus: Logbus) -> None:
    logbus.topic()
    with subprocess.Popen(
        [*LOGBUS, "topics", "list", "-z", logbus.zookeeper],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # as a head that has ended
        assert without_waiting(process.stderr.read().decode()) == ""
    assert process.returncode == 0


@pytest.mark.parametrize(("options", "code"), [(["--follow"], 0), (["-g", "interrupted"], 130)])
def test_ctrl_c_ends_what_has_no_other_end_well(
    logbus: Logbus, options: list[str], code: int
) -> None:
    name = logbus.topic()
    logbus.produce(name, ["a"])
    # With a group, the pipe fills and the verb waits in the middle of its records.
    if code:
        logbus.produce(name, ["x" * 10_000] * 100)
    with subprocess.Popen(
        [*LOGBUS, "consume", name, *options, "-z", logbus.zookeeper],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"a\n"
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
        assert b"Traceback" not in told
    assert process.returncode == code
