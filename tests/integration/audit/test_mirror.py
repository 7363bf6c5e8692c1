"""The audit of mirrors: what was published here, what is there, and what the mirror has counted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_logbus.audit import (
    AuditConfig,
    AuditInterceptor,
    AuditResult,
    Question,
    Status,
    audit,
)
from spark_logbus.client import Producer
from spark_logbus.errors import InvalidRequestError
from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from spark_logbus.mirror import Mirror, mirror_places
from tests.helpers import process_is_stopped, wait_until, without_waiting
from tests.integration.mirror.mirrored import (
    T0_US,
    MirrorProcess,
    Pair,
    copy_all,
    two_clusters,
)
from tests.servers.kill_points import KillPoints

QUICK = AuditConfig(interval_ms=300)
SINCE_US = T0_US - 600_000_000


@pytest.fixture(scope="module")
def pair(zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_clusters(zookeeper.address, tmp_path_factory.mktemp("clusters")) as clusters:
        yield clusters


def publish(pair: Pair, topic: str, numbers: range) -> None:
    """A record every second of T0 and later, by an audited producer, in several record batches."""
    counting = AuditInterceptor(pair.source, "web", config=QUICK)
    with Producer(pair.source, interceptors=[counting]) as producer:
        for number in numbers:
            sent = producer.send(topic, b"%d" % number, timestamp_us=T0_US + number * 1_000_000)
            if number % 100 == 99:
                sent.result(60)


def asked(pair: Pair, topic: str) -> AuditResult:
    """Audits at the source, with the mirror's copy and counts."""
    places = mirror_places(pair.source, topic, copy=pair.target, copy_topic=topic, address="there")
    question = Question(topic=topic, since_us=SINCE_US, clock_skew_s=0.0, wait_s=20.0)
    return audit(pair.source, question, places=places)


def asked_there(pair: Pair, topic: str) -> AuditResult:
    """Audits the copy alone, where it is."""
    question = Question(topic=topic, since_us=SINCE_US, clock_skew_s=0.0, wait_s=20.0)
    return audit(pair.target, question)


def in_copies(result: AuditResult) -> dict[str, list[tuple[Status, int]]]:
    """The verdicts of each place, window by window."""
    found: dict[str, list[tuple[Status, int]]] = {}
    for window in result.windows:
        assert window.verdict.status is Status.COMPLETE
        for one in window.copies:
            verdict = one.verdict.status, one.verdict.records
            found.setdefault(one.name.split(" mirror")[0], []).append(verdict)
    return found


COMPLETE = (Status.COMPLETE, 0)


def test_a_mirror_counts_what_it_has_copied(pair: Pair) -> None:
    topic = pair.topic(partitions=2)
    publish(pair, topic, range(900))  # of two windows
    with pair.mirror(topic, audit=True, round_bytes=2_000) as mirror:
        assert len(copy_all(mirror)) > 1
        publish(pair, topic, range(900, 1_000))
        behind = in_copies(asked(pair, topic))
        copy_all(mirror)
    assert (Status.NOT_YET, 100) in behind["counts of"]
    assert {status for status, _ in behind["counts of"]} <= {Status.COMPLETE, Status.NOT_YET}
    result = asked(pair, topic)
    assert result.findings == result.not_yet_known == 0
    assert all(len(window.copies) == 2 for window in result.windows)
    there = asked_there(pair, topic)
    assert sum(window.counted.records for window in there.windows) == 1_000
    assert there.findings == there.not_yet_known == 0
    assert {share.counter for one in there.windows for share in one.counters} == {f"mirror-{topic}"}


def losing_a_record_batch(mirror: Mirror) -> list[Any]:
    """Have the source of the mirror lose one, which is kept here."""
    source: Any = mirror._source
    read, lost = source.read, list[Any]()

    def losing_read(*args: Any, **named: Any) -> Iterator[Any]:
        for batch in read(*args, **named):
            if lost:
                yield batch
            else:
                lost.append(batch)

    source.read = losing_read
    return lost


def test_a_record_that_a_mirror_has_not_copied_is_missing_in_both(pair: Pair) -> None:
    topic = pair.topic(partitions=1)
    publish(pair, topic, range(1))
    publish(pair, topic, range(1, 200))
    with pair.mirror(topic, audit=True) as mirror:
        lost = losing_a_record_batch(mirror)
        copy_all(mirror)
    assert [batch.record_count for batch in lost] == [1]
    found = in_copies(asked(pair, topic))
    missing = (Status.MISSING, 1)
    assert (found["mirror there"][0], found["counts of"][0]) == (missing, missing)
    there = asked_there(pair, topic)  # what the mirror says it has copied is there
    assert there.findings == there.not_yet_known == 0
    command = [
        sys.executable, "-m", "spark_logbus.cli", "audit", topic, "--json", "--wait", "1s",
        "--since", "2023-11-14", "--zookeeper", pair.source_zookeeper,
        "--mirror", pair.target_zookeeper,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, without_waiting(done.stderr)) == (1, "")
    copies = json.loads(done.stdout.splitlines()[0])["copies"]
    assert [(copy["verdict"], copy["records"], copy["at_us"]) for copy in copies] == [
        ("missing", 1, T0_US)
    ] * 2


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("half-staged", marks=pytest.mark.long),
        pytest.param("decided", marks=pytest.mark.long),
        pytest.param("half-published", marks=pytest.mark.long),
        "committed",
    ],
)
def test_a_mirror_killed_at_any_step_is_neither_complete_nor_has_it_lost_anything(
    pair: Pair, tmp_path: Path, point: str
) -> None:
    topic = pair.topic(partitions=2)
    publish(pair, topic, range(200))
    with pair.mirror(topic, audit=True) as mirror:
        copy_all(mirror)
    publish(pair, topic, range(200, 500))
    points = KillPoints(tmp_path / "points")
    program = [
        "tests.integration.mirror.mirror_program",
        pair.source_zookeeper,
        pair.target_zookeeper,
    ]
    is_own = point in ("half-staged", "committed")
    if not is_own:
        points.arm(point, topic)
    with MirrorProcess(
        [*program, topic, point, "audit"], tmp_path / "log", points.environment
    ) as process:
        if is_own:
            wait_until(lambda: process_is_stopped(process.pid), deadline_s=60, message=point)
        else:
            points.wait_for(point, topic, process)
        process.kill()
    for verdicts in in_copies(asked(pair, topic)).values():
        assert {status for status, _ in verdicts} == {Status.NOT_YET}
        assert sum(records for _, records in verdicts) == 300
    with pair.mirror(topic) as mirror:  # without --audit: the round was planned with it
        assert mirror.copy_round() is not None
    for verdicts in in_copies(asked(pair, topic)).values():
        assert set(verdicts) == {COMPLETE}
    there = asked_there(pair, topic)
    assert sum(window.counted.records for window in there.windows) == 500
    assert there.findings == there.not_yet_known == 0


def test_windows_from_before_a_mirror_counted_are_not_compared(pair: Pair) -> None:
    topic = pair.topic(partitions=1)
    publish(pair, topic, range(100))
    with pair.mirror(topic) as mirror:
        copy_all(mirror)
    publish(pair, topic, range(100, 150))
    with pair.mirror(topic, audit=True) as mirror:
        copy_all(mirror)
    assert in_copies(asked(pair, topic)) == {"mirror there": [COMPLETE]}


def test_counts_never_go_into_a_copy(pair: Pair) -> None:
    topic = pair.topic(partitions=1)
    publish(pair, topic, range(10))
    with (
        pair.mirror("logbus-audit", audit=True) as mirror,
        pytest.raises(InvalidRequestError, match=r"--rename.*--pattern"),
    ):
        mirror.copy_round()
