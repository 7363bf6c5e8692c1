"""The audit of tables of a lake, by Spark and without it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from jobs.audit_completeness import main as audit_job
from spark_logbus.cli.app import app
from spark_logbus.errors import InvalidRequestError
from spark_logbus.load import DeltaTable, IcebergTable, LoadConfig, run_load
from spark_logbus.load.config import lake_properties
from spark_logbus.load.lake.opening import open_table
from spark_logbus.load.lake.places import LoadedTable
from spark_logbus.load.tables import TableOfLake
from tests.integration.audit.test_spark import COUNT, produce
from tests.servers.cluster import Logbus

GONE, DOUBLED = 100, 2_000


@pytest.fixture(params=["delta", "iceberg"])
def named(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[list[str], TableOfLake]:
    """Options that name a table, and the table."""
    if request.param == "delta":
        uri = str(tmp_path / "clicks")
        return ["--delta", uri], DeltaTable(uri)
    file = tmp_path / "lake.properties"
    file.write_text(f"type=sql\nuri=sqlite:///{tmp_path}/catalogue.db\nwarehouse={tmp_path}\n")
    options = ["--iceberg", "local.lake.clicks", "--lake-properties", str(file)]
    return options, IcebergTable("local", "lake.clicks", lake_properties(str(file)))


def file_of(table: TableOfLake) -> Path:
    """Finds the only file of a table."""
    version = open_table(table).newest()
    assert version is not None
    (file,) = version.files()
    if isinstance(table, DeltaTable):
        return Path(table.uri) / file.path
    return Path(file.path.removeprefix("file://"))


@pytest.mark.long
def test_an_audit_of_a_table_names_the_offsets(
    spark: SparkSession,
    logbus: Logbus,
    named: tuple[list[str], TableOfLake],
    capsys: pytest.CaptureFixture[str],
) -> None:
    options, table = named
    topic = logbus.topic(partitions=1)
    produce(logbus, topic)
    run_load(spark, LoadConfig(topic, table, logbus.zookeeper, audit=True))
    common = [
        "--zookeeper", logbus.zookeeper, "--since", "2024-05-06", "--until", "2024-05-07",
        "--wait", "0s", *options,
    ]  # fmt: skip

    def both() -> list[tuple[int, str]]:
        """Exit code and output of the job, and of the command."""
        code = audit_job(["--topic", topic, *common], spark=spark)
        told = [(code, capsys.readouterr().out)]
        with pytest.raises(SystemExit) as ended:
            app(["audit", topic, *common])
        return [*told, (int(ended.value.code or 0), capsys.readouterr().out)]

    for code, shown in both():
        assert (code, "all complete" in shown) == (0, True), shown

    file = file_of(table)
    rows = pq.ParquetFile(file).read().sort_by("offset")
    kept = [number for number in range(COUNT) if number != GONE]
    pq.write_table(rows.take([*kept, DOUBLED]), file)
    for code, shown in both():
        assert (code, "2 findings" in shown) == (1, True), shown
        assert f"{topic}-0: 1 offset is in the warehouse more than once: 2,000 (of" in shown
        assert f"{topic}-0: 1 offset was loaded and not in the warehouse: 100." in shown


@pytest.mark.long
def test_what_is_not_loaded_yet_is_not_missed_and_dead_letters_count(
    spark: SparkSession,
    logbus: Logbus,
    named: tuple[list[str], TableOfLake],
    capsys: pytest.CaptureFixture[str],
) -> None:
    options, table = named
    topic = logbus.topic(partitions=1)
    produce(logbus, topic)  # values are numbers, which no object of JSON is
    config = LoadConfig(topic, table, logbus.zookeeper, "n int", dead_letters=True)
    assert run_load(spark, config).dead_letters == COUNT
    loaded = LoadedTable.open(table, topic)
    produce(logbus, topic)
    assert sorted(loaded.rows().column("offset").to_pylist()) == [*range(COUNT)]
    common = ["--zookeeper", logbus.zookeeper, "--since", "2024-05-06", "--until", "2024-05-07"]
    common += ["--wait", "0s", "--json", *options]
    assert audit_job(["--topic", topic, *common], spark=spark) == 3
    told = capsys.readouterr().out
    assert "not yet" in told
    assert "missing" not in told
    # Letters of a load after the version that is audited do not count.
    run_load(spark, config)
    assert LoadedTable.open(table, topic).rows().num_rows == 2 * COUNT
    later = LoadedTable.open(table, topic).letters
    old = LoadedTable(loaded.name, loaded.version, later, loaded.loads)
    assert sorted(old.rows().column("offset").to_pylist()) == [*range(COUNT)]


def test_a_table_that_no_load_has_committed_to_is_named(
    logbus: Logbus, named: tuple[list[str], TableOfLake]
) -> None:
    _, table = named
    with pytest.raises(InvalidRequestError, match=r"loads of t under the name .*: there is none"):
        LoadedTable.open(table, "t")


@pytest.mark.long
def test_a_table_of_another_topic_is_named(
    spark: SparkSession, logbus: Logbus, named: tuple[list[str], TableOfLake]
) -> None:
    _, table = named
    topic = logbus.topic(partitions=1)
    logbus.produce(topic, ["a"])
    run_load(spark, LoadConfig(topic, table, logbus.zookeeper))
    with pytest.raises(InvalidRequestError, match=f"it holds the topic {topic}"):
        LoadedTable.open(table, "t")


@pytest.mark.long
def test_rows_of_another_writer_are_left_out(
    spark: SparkSession, logbus: Logbus, tmp_path: Path
) -> None:
    import deltalake

    topic = logbus.topic(partitions=1)
    logbus.produce(topic, ["a", "b"])
    table = DeltaTable(str(tmp_path / "t"))
    run_load(spark, LoadConfig(topic, table, logbus.zookeeper))
    deltalake.write_deltalake(
        table.uri, pa.table({"value": [b"foreign"]}), mode="append", schema_mode="merge"
    )
    loaded = LoadedTable.open(table, topic)
    assert loaded.rows().column("offset").to_pylist() == [0, 1]
