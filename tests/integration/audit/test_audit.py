"""The audit with real brokers: what is missing, there twice or not known among a million records is
found, and nothing is said of the rest."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_logbus.audit import (
    AuditConfig,
    AuditInterceptor,
    AuditReporter,
    AuditResult,
    Question,
    Status,
    Tier,
    audit,
)
from spark_logbus.audit.auditing import topic_place
from spark_logbus.client import Admin, Cluster, Consumer, Producer, ProducerConfig
from spark_logbus.errors import InvalidRequestError, UnknownTopicError
from spark_logbus.local.cluster import EmbeddedCluster
from spark_logbus.model import Earliest, TopicPartition
from tests.helpers import wait_until, without_waiting

MINUTE = 60_000_000
CONFIG = AuditConfig(window_ms=60_000, interval_ms=300)
US = pa.timestamp("us", "UTC")


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    Admin(cluster).create_topic(name, partitions=3)
    return name


@pytest.fixture
def hour(cluster: Cluster) -> tuple[int, int]:
    """Bounds of a time that has passed, of whole windows."""
    end = cluster.clock.now_us() // MINUTE * MINUTE - 10 * MINUTE
    return end - 60 * MINUTE, end


def asked(cluster: Cluster, topic: str, hour: tuple[int, int]) -> AuditResult:
    since_us, until_us = hour
    question = Question(
        topic=topic, since_us=since_us, until_us=until_us, window_us=MINUTE, clock_skew_s=0.0,
        wait_s=20.0,
    )  # fmt: skip
    return audit(cluster, question)


def after_a_death(cluster: Cluster, topic: str, hour: tuple[int, int]) -> AuditResult:
    """The audit as soon as a counter is overdue."""
    wait_until(
        lambda: asked(cluster, topic, hour).dead, message="the killed producer to be overdue"
    )
    return asked(cluster, topic, hour)


def findings(result: AuditResult) -> dict[int, tuple[Status, int]]:
    """Status and records of windows that are not complete, by their start."""
    return {
        window.start_us: (window.verdict.status, window.verdict.records)
        for window in result.windows
        if window.verdict.status is not Status.COMPLETE
    }


def has_counted(result: AuditResult, counter: str) -> bool:
    return any(share.counter == counter for window in result.windows for share in window.counters)


def times(hour: tuple[int, int], count: int) -> pa.Array:
    return pa.array(np.linspace(*hour, count, endpoint=False).astype(np.int64), US)


def send_spread(
    cluster: Cluster, topic: str, hour: tuple[int, int], count: int, *, name: str
) -> None:
    """``count`` records over the hour, by an audited producer."""
    values = pa.array([b"%07d" % number for number in range(1_000)])
    audited = AuditInterceptor(cluster, name, config=CONFIG)
    with Producer(cluster, interceptors=[audited]) as producer:
        at = times(hour, count)
        for start in range(0, count, 1_000):
            producer.send_many(topic, values[: count - start], timestamps_us=at.slice(start, 1_000))


@pytest.mark.long
def test_three_faults_are_found_among_a_million_records_and_no_other(
    brokers: EmbeddedCluster, cluster: Cluster, topic: str, hour: tuple[int, int]
) -> None:
    """One record that was acknowledged and is gone, one that is there twice, one producer that
    was killed."""
    senders = [
        threading.Thread(
            target=send_spread, args=(cluster, topic, hour, 250_000), kwargs={"name": f"web-{one}"}
        )
        for one in range(4)
    ]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    well = asked(cluster, topic, hour)
    assert (findings(well), well.findings, well.not_yet_known, well.dead) == ({}, 0, 0, ())
    assert sum(window.found.records for window in well.windows) == 1_000_000

    gone_at, doubled_at, killed_at = (hour[0] + minute * MINUTE + 4_711 for minute in (7, 20, 41))
    lossy = AuditInterceptor(cluster, "lossy", config=CONFIG)
    with Producer(cluster, interceptors=[lossy]) as producer:
        kept = producer.send(topic, b"kept", timestamp_us=gone_at + 1).result(60)
        # What a disk that lost an acknowledged record leaves: a count, and no record.
        lossy.after_append(
            topic,
            pa.RecordBatch.from_pydict({"timestamp": pa.array([gone_at], US)}),
            producer.send_many(topic, [b"also kept"], timestamps_us=[gone_at + 2])[0].result(60),
            None,
        )
    assert kept.offset is not None
    with Producer(cluster) as again:  # as a retry of somebody who cannot know
        again.send(topic, b"kept", timestamp_us=doubled_at)
    command = [
        sys.executable, "-m", "tests.integration.audit.audited_producer_program",
        brokers.zookeeper, topic, str(killed_at),
    ]  # fmt: skip
    with subprocess.Popen(command) as process:
        wait_until(lambda: has_counted(asked(cluster, topic, hour), "killed"))
        process.kill()
    result = after_a_death(cluster, topic, hour)
    told = findings(result)
    assert {start: status for start, (status, _) in told.items()} == {
        gone_at // MINUTE * MINUTE: Status.MISSING,
        doubled_at // MINUTE * MINUTE: Status.TOO_MANY,
        killed_at // MINUTE * MINUTE: Status.GAP,
    }
    assert result.findings == 3
    by_start = {window.start_us: window for window in result.windows}
    gone = by_start[gone_at // MINUTE * MINUTE]
    assert (gone.verdict.records, gone.verdict.at_us) == (1, gone_at)
    assert "lossy" in {share.counter for share in gone.counters}
    doubled = by_start[doubled_at // MINUTE * MINUTE].verdict
    assert (doubled.records, doubled.at_us) == (1, doubled_at)
    assert [run.counter for run in result.dead] == ["killed"]


def test_a_producer_that_is_killed_before_its_first_report_leaves_a_gap(
    brokers: EmbeddedCluster, cluster: Cluster, topic: str, hour: tuple[int, int]
) -> None:
    command = [
        sys.executable, "-m", "tests.integration.audit.audited_producer_program",
        brokers.zookeeper, topic, str(hour[0]),
    ]  # fmt: skip
    with subprocess.Popen(command) as process, Consumer(cluster) as consumer:
        consumer.assign_topics(topic)
        assert wait_until(lambda: consumer.poll(0.1))  # its first records are there
        process.kill()
    result = after_a_death(cluster, topic, hour)
    assert {start: status for start, (status, _) in findings(result).items()} == {
        hour[0]: Status.GAP
    }


def test_an_audit_is_silent_where_all_is_well(
    cluster: Cluster, topic: str, hour: tuple[int, int]
) -> None:
    send_spread(cluster, topic, hour, 20_000, name="one")
    send_spread(cluster, topic, hour, 20_000, name="another")
    result = asked(cluster, topic, hour)
    assert findings(result) == {}
    assert (result.findings, result.not_yet_known, result.dead) == (0, 0, ())
    assert sum(window.found.records for window in result.windows) == 40_000


def test_one_missing_and_one_twice_in_a_window_do_not_hide_each_other(
    cluster: Cluster, topic: str, hour: tuple[int, int]
) -> None:
    send_spread(cluster, topic, hour, 600, name="one")
    with (
        AuditReporter(cluster, tier=Tier.PRODUCER, counter="lossy", config=CONFIG) as lossy,
        Producer(cluster) as producer,
    ):
        lossy.count(topic, pa.array([hour[0] + 5], US))
        producer.send(topic, b"twice", timestamp_us=hour[0] + 6)
    assert findings(asked(cluster, topic, hour)) == {hour[0]: (Status.EXCHANGED, 0)}


@pytest.mark.long
@pytest.mark.parametrize("late_us", [0, 90_000_000], ids=["of now", "of windows that have passed"])
def test_audits_under_load_never_call_wrong_what_is_under_way(
    cluster: Cluster, topic: str, late_us: int
) -> None:
    """Producers send without a pause while audits run: nothing is ever found."""
    config = AuditConfig(window_ms=500, interval_ms=1_000)
    done = threading.Event()
    running = threading.Barrier(3)
    began_us = cluster.clock.now_us()

    def send(name: str) -> None:
        audited = AuditInterceptor(cluster, name, config=config)
        with Producer(cluster, interceptors=[audited]) as producer:
            producer.send(topic, b"first").result(60)
            running.wait(60)
            number = 0
            while not done.is_set():
                number += 1
                at_us = cluster.clock.now_us() - (late_us if number % 3 == 0 else 0)
                futures = producer.send_many(topic, [b"x"] * 50, timestamps_us=[at_us] * 50)
                if number % 10 == 0:
                    futures[-1].result(60)

    senders = [threading.Thread(target=send, args=(name,)) for name in ("one", "another")]
    for sender in senders:
        sender.start()
    since_us = began_us - late_us - 1_000_000
    question = Question(topic=topic, since_us=since_us, clock_skew_s=0.0, wait_s=5.0)
    results: list[AuditResult] = []

    def are_enough() -> bool:
        results.append(audit(cluster, question))
        verdicts = [window.verdict.status for window in results[-1].windows]
        return len(results) >= 8 and verdicts.count(Status.COMPLETE) >= 4

    try:
        running.wait(60)
        wait_until(are_enough, deadline_s=90)
    finally:
        done.set()
        for sender in senders:
            sender.join()
    assert [(findings(result), result.dead) for result in results if result.findings] == []
    after = Question(
        topic=topic, since_us=since_us, until_us=cluster.clock.now_us() + 1_000_000,
        clock_skew_s=0.0, wait_s=0.0,
    )  # fmt: skip
    result = audit(cluster, after)
    assert (findings(result), result.not_yet_known) == ({}, 0)
    counted = sum(one.counted.records for one in result.windows)
    assert counted == sum(one.found.records for one in result.windows) > 1_000


def test_a_live_producer_is_waited_for_where_its_next_report_decides(
    cluster: Cluster, topic: str, hour: tuple[int, int]
) -> None:
    audited = AuditInterceptor(
        cluster, "lives", config=AuditConfig(window_ms=60_000, interval_ms=2_000)
    )
    with Producer(cluster, interceptors=[audited]) as producer, Producer(cluster) as other:
        producer.send(topic, b"once", timestamp_us=hour[0]).result(60)
        other.send(topic, b"more", timestamp_us=hour[0] + 9).result(60)
        assert findings(asked(cluster, topic, hour)) == {hour[0]: (Status.TOO_MANY, 1)}


def test_records_that_are_there_and_not_acknowledged_yet_are_not_too_many(
    cluster: Cluster, topic: str, hour: tuple[int, int]
) -> None:
    config = AuditConfig(window_ms=60_000, interval_ms=2_000)
    audited = AuditInterceptor(cluster, "slow", config=config)
    records = pa.RecordBatch.from_pydict({"timestamp": pa.array([hour[0]], US)})
    with Producer(cluster) as producer:  # whose answer is long in coming
        audited.before_append(topic, records)
        audited.under_way(topic, records)
        appended = producer.send_many(topic, [b"x"], timestamps_us=[hour[0]])[0].result(60)
    now_us = cluster.clock.now_us()
    question = Question(
        topic=topic, since_us=hour[0], until_us=hour[1], clock_skew_s=0.0, wait_s=0.0
    )

    def has_reported_since() -> bool:
        return any(run.heard_us > now_us for run in audit(cluster, question).runs)

    wait_until(has_reported_since)
    waiting = audit(cluster, question)
    assert (findings(waiting), waiting.dead) == ({hour[0]: (Status.NOT_YET, 0)}, ())
    audited.after_append(topic, records, appended, None)
    audited.close()
    assert findings(audit(cluster, question)) == {}


def test_records_of_producers_that_count_nothing_are_told(
    cluster: Cluster, topic: str, hour: tuple[int, int]
) -> None:
    with Producer(cluster) as producer:
        producer.send(topic, b"x", timestamp_us=hour[0])
    assert findings(asked(cluster, topic, hour)) == {hour[0]: (Status.UNCOUNTED, 1)}


def test_records_that_failed_are_in_doubt_and_found_not_to_be_there(
    cluster: Cluster, topic: str, hour: tuple[int, int]
) -> None:
    audited = AuditInterceptor(cluster, "one", config=CONFIG)
    with Producer(cluster, ProducerConfig(linger_ms=0), interceptors=[audited]) as producer:
        producer.send(topic, b"x", timestamp_us=hour[0]).result(60)
        Admin(cluster).delete_topic(topic)
        assert producer.send(topic, b"late", timestamp_us=hour[0] + MINUTE).exception(60)
    Admin(cluster).create_topic(topic, partitions=1)
    with Producer(cluster) as restored:
        restored.send(topic, b"x", timestamp_us=hour[0])
    result = asked(cluster, topic, hour)
    assert [(window.counted.records, window.in_doubt) for window in result.windows] == [
        (1, 0), (0, 1)
    ]  # fmt: skip
    assert findings(result) == {}


def test_a_mirror_that_lost_a_record_is_told(
    cluster: Cluster, topic: str, hour: tuple[int, int]
) -> None:
    send_spread(cluster, topic, hour, 6_000, name="one")
    copy = f"{topic}-copy"
    Admin(cluster).create_topic(copy, partitions=1)
    with Consumer(cluster) as consumer, Producer(cluster) as producer:
        consumer.assign_topics(topic)
        table = consumer.to_arrow().select(["value", "timestamp"]).combine_chunks()
        producer.send_arrow(copy, table.slice(1))
    lost_at = table.column("timestamp")[0].cast(pa.int64()).as_py()
    question = Question(
        topic=topic, since_us=hour[0], until_us=hour[1], clock_skew_s=0.0, wait_s=0.0
    )
    result = audit(cluster, question, places=[topic_place(cluster, copy, name="there")])
    assert findings(result) == {}
    told = [
        (window.start_us, one.name, one.verdict.status, one.verdict.at_us)
        for window in result.windows
        for one in window.copies
        if one.verdict.status is not Status.COMPLETE
    ]
    assert told == [(lost_at // MINUTE * MINUTE, "there", Status.MISSING, lost_at)]


def test_consumers_are_compared_by_what_they_say(
    cluster: Cluster, topic: str, hour: tuple[int, int]
) -> None:
    send_spread(cluster, topic, hour, 600, name="one")
    with (
        AuditReporter(cluster, tier=Tier.CONSUMER, counter="billing", config=CONFIG) as consumed,
        Consumer(cluster) as consumer,
    ):
        consumer.assign_topics(topic)
        table = consumer.to_arrow()
        consumed.count(topic, table.column("timestamp").slice(1).combine_chunks())
    result = asked(cluster, topic, hour)
    told = [one.verdict for window in result.windows for one in window.copies]
    assert sum(one.status is Status.MISSING for one in told) == 1
    assert sum(one.status is Status.COMPLETE for one in told) == len(told) - 1


def test_records_of_a_consumer_are_counted_one_by_one_too(
    cluster: Cluster, topic: str, hour: tuple[int, int]
) -> None:
    send_spread(cluster, topic, hour, 600, name="one")
    with (
        AuditReporter(cluster, tier=Tier.CONSUMER, counter="billing", config=CONFIG) as consumed,
        Consumer(cluster) as consumer,
    ):
        consumer.assign_topics(topic)
        left = 600
        while left:
            records = consumer.poll(60)
            consumed.count_records(records)
            left -= len(records)
    verdicts = [
        one.verdict.status
        for window in asked(cluster, topic, hour).windows
        for one in window.copies
    ]
    assert set(verdicts) == {Status.COMPLETE}


@pytest.mark.parametrize("encoding", ["columns", "avro"])
def test_topics_with_a_schema_are_counted_by_their_times(
    cluster: Cluster, topic: str, hour: tuple[int, int], encoding: str
) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "number", "type": "long"}]}
    typed = f"{topic}-typed"
    Admin(cluster).create_topic(typed, partitions=2, value_schema=schema, value_encoding=encoding)
    audited = AuditInterceptor(cluster, "typed", config=CONFIG)
    rows = [{"number": number} for number in range(12_000)]
    with Producer(cluster, interceptors=[audited]) as producer:
        producer.send_many(typed, rows, timestamps_us=times(hour, 12_000))
        producer.send(typed, rows[0], timestamp_us=hour[0] + 3)
    result = asked(cluster, typed, hour)
    assert (findings(result), sum(one.found.records for one in result.windows)) == ({}, 12_001)
    with Producer(cluster) as again:
        again.send(typed, rows[0], timestamp_us=hour[0] + 3)
    assert findings(asked(cluster, typed, hour)) == {hour[0]: (Status.TOO_MANY, 1)}


@pytest.mark.long
def test_windows_that_retention_has_reached_are_not_called_missing(
    cluster: Cluster, topic: str, hour: tuple[int, int]
) -> None:
    small = f"{topic}-small"
    place = TopicPartition(small, 0)
    Admin(cluster).create_topic(small, partitions=1, config={"segment.bytes": 2_048})
    audited = AuditInterceptor(cluster, "one", config=CONFIG)
    with Producer(cluster, interceptors=[audited]) as producer:
        for number in range(40):
            at_us = hour[0] + number * MINUTE
            producer.send(small, b"x" * 500, timestamp_us=at_us, partition=0).result(60)
    Admin(cluster).alter_topic(small, put={"retention.bytes": "4096"})
    wait_until(
        lambda: Admin(cluster).list_offsets({place: Earliest()})[place],
        deadline_s=90,
        message="retention",
    )
    result = asked(cluster, small, hour)
    assert {status for status, _ in findings(result).values()} == {Status.EXPIRED}
    assert (result.findings, result.not_yet_known) == (0, 0)


def test_topics_that_cannot_be_audited_are_refused_with_the_reason(
    cluster: Cluster, topic: str, hour: tuple[int, int]
) -> None:
    Admin(cluster).create_topic(f"{topic}-c", partitions=1, config={"cleanup.policy": "compact"})
    send_spread(cluster, topic, hour, 10, name="one")  # so that there is an audit topic
    with pytest.raises(InvalidRequestError, match="compacted"):
        asked(cluster, f"{topic}-c", hour)
    with pytest.raises(UnknownTopicError, match="nowhere"):
        asked(cluster, "nowhere", hour)
    elsewhere = Question(topic=topic, since_us=hour[0], audit_topic="no-reports")
    with pytest.raises(UnknownTopicError, match="no-reports"):
        audit(cluster, elsewhere)


def test_a_producer_goes_on_where_nothing_can_be_reported(
    cluster: Cluster, topic: str, hour: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    """The audit topic is somebody else's: no report fits."""
    config = AuditConfig(topic=f"{topic}-x", interval_ms=50, wait_ms=500)
    Admin(cluster).create_topic(f"{topic}-x", partitions=1)
    audited = AuditInterceptor(cluster, "one", config=config)
    with Producer(cluster, interceptors=[audited]) as producer:
        for number in range(50):
            producer.send(topic, b"x", timestamp_us=hour[0] + number).result(60)
    told = [record for record in caplog.records if "cannot be published" in record.message]
    assert len(told) == 1
    with Consumer(cluster) as consumer:
        consumer.assign_topics(topic)
        assert consumer.to_arrow().num_rows == 50


@pytest.mark.long
def test_a_producer_outlives_the_broker_of_the_audit_topic(
    tmp_path: Path, hour: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    with (
        EmbeddedCluster(tmp_path, brokers=2) as embedded,
        Cluster.from_zookeeper(embedded.zookeeper) as cluster,
    ):
        admin = Admin(cluster)
        admin.create_topic("orders", partitions=2)
        audited = AuditInterceptor(cluster, "one", config=CONFIG)
        with Producer(cluster, interceptors=[audited]) as producer:
            producer.send("orders", b"before", timestamp_us=hour[0]).result(60)
            home = admin.describe([CONFIG.topic])[CONFIG.topic].partitions[0].leader_id
            (broker,) = (one for one in embedded.brokers if one.broker_id == home)
            other = next(
                number
                for number, partition in admin.describe(["orders"])["orders"].partitions.items()
                if partition.leader_id != home
            )
            broker.kill()
            wait_until(
                lambda: any("cannot be published" in record.message for record in caplog.records),
                message="the warning that counts cannot be published",
            )
            for number in range(100):
                at_us = hour[0] + number * MINUTE // 2
                producer.send("orders", b"during", timestamp_us=at_us, partition=other).result(60)
            broker.start()
            wait_until(
                lambda: any("are published again" in record.message for record in caplog.records),
                message="the counts to be published again",
            )
        result = asked(cluster, "orders", hour)
        assert (findings(result), result.dead) == ({}, ())
        assert sum(window.counted.records for window in result.windows) == 101


def test_the_audit_topic_is_never_audited(cluster: Cluster) -> None:
    with AuditReporter(cluster, tier=Tier.PRODUCER, counter="self", config=CONFIG) as reporter:
        reporter.count(CONFIG.topic, pa.array([0], US))
        reporter.open_topic(CONFIG.topic, pa.array([0], US))
        assert reporter._run.topics == frozenset()


def test_a_counter_of_many_windows_begins_anew_and_loses_none(
    cluster: Cluster, topic: str, hour: tuple[int, int]
) -> None:
    few = AuditConfig(window_ms=60_000, interval_ms=300, max_windows=4)
    audited = AuditInterceptor(cluster, "narrow", config=few)
    with Producer(cluster, interceptors=[audited]) as producer:
        for at in times(hour, 120).cast(pa.int64()).to_pylist():
            producer.send(topic, b"x", timestamp_us=at).result(60)
            # A run that ended is told before the next one is full, however busy the machine is.
            wait_until(lambda: audited._reporter._ending is None, message="the last report of it")
    result = asked(cluster, topic, hour)
    assert (findings(result), result.dead) == ({}, ())
    assert sum(window.counted.records for window in result.windows) == 120
    assert len(result.runs) > 10


def test_the_command_says_what_is_wrong_with_its_exit_code(
    brokers: EmbeddedCluster, cluster: Cluster, topic: str, hour: tuple[int, int], tmp_path: Path
) -> None:
    send_spread(cluster, topic, hour, 600, name="one")
    command = [
        sys.executable, "-m", "spark_logbus.cli", "audit", topic, "--since", "-2h", "--json",
        "--zookeeper", brokers.zookeeper,
    ]  # fmt: skip
    well = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (well.returncode, without_waiting(well.stderr)) == (0, "")
    *windows, summary = [json.loads(line) for line in well.stdout.splitlines()]
    assert {window["verdict"] for window in windows} == {"complete"}
    assert (summary["counted"], summary["found"], summary["findings"]) == (600, 600, 0)
    with Producer(cluster) as producer:
        producer.send(topic, b"again", timestamp_us=hour[0])
    command.remove("--json")
    bad = subprocess.run([*command, "-q"], capture_output=True, text=True, timeout=60, check=False)
    assert bad.returncode == 1
    head, row, summed_up = bad.stdout.splitlines()
    assert head.split()[:4] == ["WINDOW", "COUNTED", "IN-DOUBT", "FOUND"]
    assert "too many: 1" in row
    assert summed_up.endswith("601 found; 1 finding.")
