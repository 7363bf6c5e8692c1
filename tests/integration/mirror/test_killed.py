"""Mirrors that are killed: at each step, at random times; and clusters that go away meanwhile."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_logbus.client import ClientConfig, Producer
from spark_logbus.coordination.mirrors import Mirrors
from spark_logbus.errors import BrokerUnavailableError, ZooKeeperAddressError
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from spark_logbus.mirror import (
    Listener,
    Mirror,
    MirrorConfig,
    MirrorProgress,
    open_mirror,
    run_mirror,
)
from spark_logbus.mirror.points import translated
from spark_logbus.selection import Topics
from spark_logbus.zookeeper import Session
from tests.helpers import process_is_stopped, wait_until
from tests.integration.mirror.mirrored import (
    MirrorProcess,
    Pair,
    assert_equal,
    copy_all,
    spans,
    two_clusters,
)
from tests.servers.kill_points import KillPoints
from tests.servers.ports import refusing_address
from tests.servers.spark_processes import environment

OWN_POINTS = ["planned", "half-staged", "committed", "noted"]
POINTS_OF_WRITES = ["staged", "prepared", "decided", "half-published", "published"]


@pytest.fixture(scope="module")
def pair(zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_clusters(zookeeper.address, tmp_path_factory.mktemp("clusters")) as clusters:
        yield clusters


def command(pair: Pair, topic: str, *more: str) -> list[str]:
    return [
        "spark_logbus.cli", "mirror", "--from", pair.source_zookeeper,
        "--zookeeper", pair.target_zookeeper, "--topics", topic, "--name", f"mirror-{topic}", *more,
    ]  # fmt: skip


def assert_translated(pair: Pair, topic: str) -> None:
    """Offsets of an uncompacted topic are the same in the copy, and the mirror knows it."""
    with Session(pair.target_zookeeper, client_name="test") as session:
        entry = Mirrors(session).read(f"mirror-{topic}").topics[topic]
    for at, (_, end) in spans(pair.source, topic).items():
        points = entry.points[at.partition]
        for offset in {0, 1, end // 3, end // 2, end}:
            found = translated(points, offset)
            assert (found.target, found.exact, found.ahead) == (offset, True, 0)


@pytest.mark.parametrize(
    "point",
    [
        *(
            pytest.param(each, marks=[] if each == "committed" else pytest.mark.long)
            for each in OWN_POINTS
        ),
        *(
            pytest.param(each, marks=[] if each == "half-published" else pytest.mark.long)
            for each in POINTS_OF_WRITES
        ),
    ],
)
def test_a_mirror_killed_at_any_step_copies_each_record_once(
    pair: Pair, tmp_path: Path, point: str
) -> None:
    topic = pair.topic(partitions=3)
    pair.produce(topic, 300)
    with pair.mirror(topic) as mirror:
        copy_all(mirror)
    pair.produce(topic, 600)
    points = KillPoints(tmp_path / "points")
    program = [
        "tests.integration.mirror.mirror_program",
        pair.source_zookeeper,
        pair.target_zookeeper,
    ]
    if point in POINTS_OF_WRITES:
        points.arm(point, topic)
    with MirrorProcess([*program, topic, point], tmp_path / "log", points.environment) as process:
        if point in POINTS_OF_WRITES:
            points.wait_for(point, topic, process)
        else:
            wait_until(lambda: process_is_stopped(process.pid), deadline_s=60, message=point)
        process.kill()
    pair.produce(topic, 100)
    with pair.mirror(topic) as mirror:
        copy_all(mirror)
    assert assert_equal(pair, topic) == 1_000
    assert_translated(pair, topic)


@contextlib.contextmanager
def producing(pair: Pair, topic: str) -> Iterator[None]:
    """Records come to the topic all the time."""
    stop = threading.Event()

    def produce() -> None:
        with Producer(pair.source) as producer:
            number = 0
            while not stop.wait(0.002):
                for _ in range(5):
                    producer.send(topic, b"%d" % number + bytes(100), key=b"%d" % (number % 50))
                    number += 1

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(
    "kills", [pytest.param(3, marks=pytest.mark.long), pytest.param(50, marks=pytest.mark.slow)]
)
def test_a_mirror_killed_at_random_times_copies_each_record_once(
    pair: Pair, tmp_path: Path, kills: int
) -> None:
    topic = pair.topic(partitions=3)
    dice = random.Random(kills)
    words = command(pair, topic, "--round-bytes", "20000")
    pause = threading.Event()
    with producing(pair, topic):
        for number in range(kills):
            with MirrorProcess(words, tmp_path / f"log-{number}") as process:
                before = _copied(pair, topic)
                if number % 3 == 0:  # one in three at least gets through its start
                    wait_until(lambda: _copied(pair, topic) > before, message="records")  # noqa: B023
                pause.wait(dice.uniform(0.2, 1.5))
                assert process.alive()
    with pair.mirror(topic) as mirror:
        copy_all(mirror)
    assert assert_equal(pair, topic) > 500
    assert_translated(pair, topic)


def _copied(pair: Pair, topic: str) -> int:
    """Records in the copy, if there is one yet."""
    with Session(pair.target_zookeeper, client_name="test") as session:
        entry = Mirrors(session).read(f"mirror-{topic}").topics.get(topic)
    if entry is None:
        return 0
    return sum(points[-1].target for points in entry.points.values())


def test_a_mirror_that_is_asked_to_stop_ends_well(pair: Pair, tmp_path: Path) -> None:
    topic = pair.topic()
    pair.produce(topic, 100)
    with MirrorProcess(command(pair, topic), tmp_path / "log") as process:
        wait_until(lambda: _copied(pair, topic) == 100, message="the records")
        assert process.terminate() == 0
    said = (tmp_path / "log").read_text()
    assert "100 records" in said
    assert said.splitlines()[-1] == "Stopped; 100 records copied. Start it again to go on."
    assert_equal(pair, topic)


class Heard(Listener):
    """Keeps what a running mirror has told."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.recoveries = 0
        self.progress: MirrorProgress | None = None

    def progressed(self, progress: MirrorProgress) -> None:
        self.progress = progress

    def failed(self, error: Exception) -> None:
        self.failures.append(str(error))

    def recovered(self) -> None:
        self.recoveries += 1

    def is_done(self, ends: int) -> bool:
        """True if so many offsets are copied, and no more are known of."""
        lags = [] if self.progress is None else self.progress.lags
        return sum(each.position for each in lags) == ends and not any(
            each.records for each in lags
        )


@contextlib.contextmanager
def running(mirror: Mirror, heard: Heard) -> Iterator[None]:
    """The mirror at work in a thread."""
    thread = threading.Thread(
        target=run_mirror, args=(mirror,), kwargs={"once": False, "listener": heard}
    )
    thread.start()
    try:
        yield
    finally:
        mirror.stop()
        thread.join(60)


@pytest.mark.parametrize("which", ["source", pytest.param("target", marks=pytest.mark.long)])
def test_a_mirror_waits_for_a_broker_that_is_away(pair: Pair, which: str) -> None:
    topic = pair.topic(partitions=2)
    pair.produce(topic, 200)
    heard = Heard()
    broker: BrokerProcess = getattr(pair, f"{which}_broker")
    impatient = ClientConfig(retry_deadline_ms=2_000)
    with (
        pair.mirror(topic, retry_max_ms=500, client=impatient) as mirror,
        running(mirror, heard),
    ):
        wait_until(lambda: heard.is_done(200), message="the first records")
        broker.kill()
        wait_until(lambda: heard.failures, deadline_s=90, message="a failure to be told")
        broker.start()
        pair.produce(topic, 200)
        wait_until(lambda: heard.is_done(400), deadline_s=90, message="the other records")
        assert heard.recoveries
    assert assert_equal(pair, topic) == 400


def test_a_mirror_waits_at_its_start_for_a_broker_that_is_away(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    topic = pair.topic()
    pair.produce(topic, 100)

    def copy() -> None:
        with pair.mirror(topic) as mirror:
            copy_all(mirror)

    pair.target_broker.kill()
    with ThreadPoolExecutor(1) as pool:
        copied = pool.submit(copy)
        try:
            said = "Connecting to the target failed and is tried again"
            wait_until(lambda: said in caplog.text, deadline_s=60, message="what it waits for")
        finally:
            pair.target_broker.start()
        copied.result(120)
    assert assert_equal(pair, topic) == 100


@pytest.mark.parametrize("away", ["source", "target"])
def test_a_mirror_whose_cluster_stays_away_says_which_one(pair: Pair, away: str) -> None:
    config = MirrorConfig(name="away", topics=Topics(("t",)), give_up_ms=1_000)
    there = {"source": pair.source_zookeeper, "target": pair.target_zookeeper}
    said = f"Connecting to the {away} has failed .*Nothing listens"
    with refusing_address() as refusing:
        addresses = {**there, away: refusing}
        mirror = open_mirror(config, target=addresses["target"], zookeeper=addresses["source"])
        with pytest.raises(ZooKeeperAddressError, match=said):
            mirror.__enter__()


def test_a_mirror_of_a_kafka_that_stays_away_says_so(pair: Pair) -> None:
    """No Kafka is needed for that, only its client."""
    pytest.importorskip("confluent_kafka", reason="the extra kafka is not installed")
    config = MirrorConfig(name="away", topics=Topics(("t",)), give_up_ms=1_000)
    with refusing_address() as refusing:
        said = rf"Connecting to the source has failed .*Kafka at {refusing} did not answer .*Is it"
        mirror = open_mirror(config, target=pair.target_zookeeper, kafka=refusing)
        with pytest.raises(BrokerUnavailableError, match=said):
            mirror.__enter__()


@pytest.mark.long
def test_a_mirror_waits_for_zookeeper(tmp_path: Path) -> None:
    """Its lock goes with its session, and is taken again."""
    with (
        EmbeddedZooKeeper(tmp_path / "zookeeper") as server,
        two_clusters(server.address, tmp_path) as pair,
    ):
        topic = pair.topic()
        pair.produce(topic, 200)
        heard = Heard()
        with pair.mirror(topic, retry_max_ms=500) as mirror, running(mirror, heard):
            wait_until(lambda: heard.is_done(200), message="the first records")
            server.stop()
            wait_until(lambda: heard.failures, deadline_s=90, message="a failure to be told")
            server.start()
            pair.produce(topic, 200)
            wait_until(lambda: heard.is_done(400), deadline_s=120, message="the others")
        assert assert_equal(pair, topic) == 400


def test_the_spark_job_is_the_same_program(pair: Pair, tmp_path: Path) -> None:
    topic = pair.topic()
    pair.produce(topic, 50)
    words = command(pair, topic, "--once")[2:]
    for said in ("Copied 50 records.", "Nothing new."):
        done = subprocess.run(
            [sys.executable, "jobs/mirror.py", *words],
            env=environment(), capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.splitlines()[-1] == said
    assert_equal(pair, topic)
