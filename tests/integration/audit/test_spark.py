"""The audit of what Spark writes and loads."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from jobs.audit_completeness import main as audit_job
from spark_logbus.audit import AuditInterceptor, AuditResult, Question, Status, audit
from spark_logbus.audit.auditing import Place
from spark_logbus.audit.counts import tally_times
from spark_logbus.audit.warehouse import local_warehouse
from spark_logbus.client import Producer
from spark_logbus.load import LoadConfig, run_load
from spark_logbus.load.audit_windows import tallies_of
from tests.servers.cluster import Logbus

US = pa.timestamp("us", "UTC")
WINDOW_US = 600_000_000
BEGIN = dt.datetime(2024, 5, 6, 7, 0, tzinfo=dt.UTC)
BEGIN_US = int(BEGIN.timestamp()) * 1_000_000
COUNT = 3_000
TIMES = [BEGIN_US + number * 1_000_003 for number in range(COUNT)]  # 50 minutes


def asked(logbus: Logbus, topic: str, *places: Place) -> AuditResult:
    question = Question(
        topic=topic, since_us=BEGIN_US, until_us=BEGIN_US + 6 * WINDOW_US, clock_skew_s=0.0,
        wait_s=0.0,
    )  # fmt: skip
    return audit(logbus.cluster, question, places=places)


def not_complete(result: AuditResult) -> list[tuple[int, str, Status, int, int | None]]:
    """Window, place, status, records and time of what is not complete."""
    return [
        (window.start_us, name, one.status, one.records, one.at_us)
        for window in result.windows
        for name, one in [
            ("topic", window.verdict), *((copy.name, copy.verdict) for copy in window.copies)
        ]
        if one.status is not Status.COMPLETE
    ]  # fmt: skip


def produce(logbus: Logbus, topic: str) -> None:
    values = pa.array([b"%d" % number for number in range(COUNT)])
    audited = AuditInterceptor(logbus.cluster, "web")
    with Producer(logbus.cluster, interceptors=[audited]) as producer:
        producer.send_many(topic, values, timestamps_us=pa.array(TIMES, US))


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_write_of_spark_counts_what_it_has_committed(
    spark: SparkSession, logbus: Logbus, delivery: str
) -> None:
    topic = logbus.topic(partitions=2)
    frame = spark.range(COUNT, numPartitions=3).selectExpr(
        "cast(id as string) AS value", f"timestamp_micros({BEGIN_US} + id * 1000003) AS timestamp"
    )
    writer = frame.write.format("logbus").option("zookeeper", logbus.zookeeper).mode("append")
    writer.option("delivery", delivery).option("audit", "true").save(topic)
    result = asked(logbus, topic)
    assert not_complete(result) == []
    assert sum(window.counted.records for window in result.windows) == COUNT
    assert result.findings == result.not_yet_known == 0
    writer.option("audit", "false").save(topic)
    assert {status for _, _, status, _, _ in not_complete(asked(logbus, topic))} == {
        Status.TOO_MANY
    }


@pytest.mark.long
def test_micro_batches_count_once_however_often_they_run(
    spark: SparkSession, logbus: Logbus, tmp_path: Path
) -> None:
    source, target = logbus.topic(partitions=2), logbus.topic(partitions=2)

    def copy() -> None:
        stream = spark.readStream.format("logbus").option("zookeeper", logbus.zookeeper)
        (
            stream.option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "700")
            .load(source)
            .select("value", "timestamp")
            .writeStream.format("logbus")
            .option("zookeeper", logbus.zookeeper)
            .option("topic", target)
            .option("audit", "true")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination(120)
        )

    produce(logbus, source)
    copy()
    # The last micro-batch is done again, as after a driver that died before it wrote its commit.
    last = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda one: int(one.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    copy()
    result = asked(logbus, target)
    assert not_complete(result) == []
    assert sum(window.counted.records for window in result.windows) == COUNT


def test_spark_counts_as_the_clients_do(spark: SparkSession) -> None:
    times = [*TIMES, -1, 0, 5 * WINDOW_US]
    frame = spark.createDataFrame([(at,) for at in times], "at bigint").selectExpr(
        "timestamp_micros(at) AS timestamp"
    )
    expected = tally_times(pa.array(times, US), window_us=WINDOW_US)
    assert tallies_of(frame, window_us=WINDOW_US) == expected


@pytest.mark.long
def test_an_audit_of_a_warehouse_names_the_offsets(
    spark: SparkSession, logbus: Logbus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = logbus.topic(partitions=1)
    produce(logbus, topic)
    run_load(spark, LoadConfig(topic, str(tmp_path), logbus.zookeeper, audit=True))
    place = local_warehouse(logbus.cluster, topic, tmp_path)
    well = asked(logbus, topic, place)
    assert not_complete(well) == []
    assert {copy.name.split(":")[0] for copy in well.windows[0].copies} == {
        f"warehouse {tmp_path}", "load file"
    }  # fmt: skip
    job = [
        "--topic", topic, "--zookeeper", logbus.zookeeper, "--since", "2024-05-06",
        "--until", "2024-05-07", "--warehouse", str(tmp_path), "--wait", "0s",
    ]  # fmt: skip
    assert audit_job(job, spark=spark) == 0
    assert "all complete" in capsys.readouterr().out

    gone, doubled = 100, 2_000
    (file,) = (tmp_path / topic).glob("date=*/*.parquet")
    table = pq.ParquetFile(file).read().sort_by("offset")
    kept = [number for number in range(COUNT) if number != gone]
    at = table.schema.get_field_index("timestamp")
    table = table.set_column(at, "timestamp", table.column(at).cast(US))  # as Spark has them
    pq.write_table(table.take([*kept, doubled]), file)
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    found = asked(logbus, topic, local_warehouse(logbus.cluster, topic, tmp_path))
    name = f"warehouse {tmp_path}"
    expected: list[Any] = [
        (TIMES[number] // WINDOW_US * WINDOW_US, name, status, 1, TIMES[number])
        for number, status in [(gone, Status.MISSING), (doubled, Status.TOO_MANY)]
    ]
    assert not_complete(found) == expected
    twice, missing = found.notes
    assert twice.startswith(f"{topic}-0: 1 offset is in the warehouse more than once: 2,000 (of")
    assert missing == f"{topic}-0: 1 offset was loaded and not in the warehouse: 100."
    assert audit_job(job, spark=spark) == 1
    shown = capsys.readouterr().out
    assert twice in shown
    assert missing in shown
    assert "2 findings" in shown


@pytest.mark.long
def test_records_that_are_not_loaded_yet_are_not_missed(
    spark: SparkSession, logbus: Logbus, tmp_path: Path
) -> None:
    topic = logbus.topic(partitions=1)
    produce(logbus, topic)
    run_load(spark, LoadConfig(topic, str(tmp_path), logbus.zookeeper))
    produce(logbus, topic)
    result = asked(logbus, topic, local_warehouse(logbus.cluster, topic, tmp_path))
    assert {status for _, _, status, _, _ in not_complete(result)} == {Status.NOT_YET}
    assert sum(records for *_, records, _ in not_complete(result)) == COUNT
    assert (result.findings, result.notes) == (0, ())
