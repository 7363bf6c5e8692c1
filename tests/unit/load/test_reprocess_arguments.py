"""The command line of jobs/reprocess.py, and what it tells a person."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from jobs.reprocess import main, parse_arguments, report
from spark_logbus.errors import LogbusError
from spark_logbus.load import (
    Commit,
    DeltaTable,
    IcebergTable,
    JdbcTable,
    ReprocessConfig,
    Reprocessed,
)
from spark_logbus.load.command import Output
from spark_logbus.load.plan.window import ExistingRows
from spark_logbus.model import OffsetRange, TopicPartition

REQUIRED = ["--topic", "clicks", "--warehouse", "/data", "--from", "-10 minutes"]
SAMPLE = Path(__file__).parents[3] / "conf" / "reprocess.toml"


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGBUS_ZOOKEEPER", "zk:2181/logbus")
    expected = ReprocessConfig(
        topic="clicks", warehouse="/data", zookeeper="zk:2181/logbus", start="-10 minutes"
    )
    assert parse_arguments(REQUIRED) == (expected, Output())


def test_everything(tmp_path: Path) -> None:
    (tmp_path / "a.avsc").write_text("{}")
    more = [
        "--zookeeper", "zk:1/x", "--until", "2026-01-31", "--avro-schema", str(tmp_path / "a.avsc"),
        "--drop-value", "--dead-letters", "--compression", "zstd", "--dry-run", "--json",
        "--hive-table", "db.t",
    ]  # fmt: skip
    expected = ReprocessConfig(
        topic="clicks", warehouse="/data", zookeeper="zk:1/x", start="-10 minutes",
        until="2026-01-31", avro_schema="{}", drop_value=True, dead_letters=True,
        compression="zstd", dry_run=True, hive_table="db.t",
    )  # fmt: skip
    assert parse_arguments([*REQUIRED, *more]) == (expected, Output(as_json=True))


def test_the_command_line_wins_over_the_sample_configuration() -> None:
    given = ["--config", str(SAMPLE), "--from", "earliest", "--topic", "mine"]
    config, _ = parse_arguments(given)
    assert (config.topic, config.warehouse, config.dead_letters) == (
        "mine",
        "/data/warehouse",
        True,
    )
    assert (config.dry_run, config.drop_value, config.avro_schema) == (False, False, None)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--from", "latest"], "--from latest would load nothing"),
        (["--until", "soon"], "--until: expected"),
        (["--jdbc-url", "jdbc:postgresql:d"], "No one target is named: give one of --warehouse"),
        (["--jdbc-properties", "f"], "No one target is named: give one of --warehouse"),
        (["--topic", "a/b"], "cannot name a topic"),
        (["--avro-schema", "/no/such/file"], "--avro-schema /no/such/file cannot be read"),
        (["--avro-schema", "/dev/null", "--json-schema", "a int"], "values are one or the other"),
        (["--hive-table", "t"], "--hive-table is 't', expected database.table"),
        (["--drop-value"], "--drop-value without --json-schema or --avro-schema"),
        (["--config", "/no/such/file"], "Cannot read the configuration file /no/such/file"),
    ],
)
def test_values_are_checked_before_spark_starts(more: list[str], named: str) -> None:
    with pytest.raises(LogbusError, match=named):
        parse_arguments([*REQUIRED, *more])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[reprocess]\njson_shema = 'a int'", "Unknown key 'json_shema' .*did you mean"),
        ("[reprocess]\navro_schema = 5", "avro_schema in .* must be str, got 5"),
        ("topic = 'a'", "Unknown key 'topic'"),
    ],
)
def test_what_a_window_or_its_values_cannot_be_is_named(
    tmp_path: Path, text: str, named: str
) -> None:
    (tmp_path / "job.toml").write_text(text)
    with pytest.raises(LogbusError, match=named):
        parse_arguments([*REQUIRED, "--config", str(tmp_path / "job.toml")])


def test_what_is_missing_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--from", "earliest", "--topic", "t"]) == 2
    shown = capsys.readouterr().out
    assert shown == (
        "Reprocessing failed: No one target is named: give one of --warehouse, --delta, "
        "--iceberg, or --jdbc-url with --jdbc-table, here or as a key of the file of --config.\n"
    )


RANGE = OffsetRange(TopicPartition("clicks", 3), 1_000, 3_500)
PLAN = Reprocessed(
    topic="clicks", path="/data/clicks", dry_run=True, ranges=(RANGE,),
    before=ExistingRows(
        2_400, 100, files=tuple(f"date=1/part-{n}" for n in range(12)), kept_records=70
    ),
    seconds=1.0, steps={"write": 0.5}, columns_added=("note",), columns_left_out=("n",),
)  # fmt: skip


FILES = ReprocessConfig(topic="clicks", warehouse="/data", zookeeper="zk", start="earliest")


def told(done: Reprocessed, config: ReprocessConfig = FILES) -> str:
    console = Console(file=io.StringIO(), width=200)
    report(console, config, done)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_plan_tells_what_would_be_replaced() -> None:
    said = told(PLAN)
    for part in (
        "Plan for clicks", "1,000", "3,500", "2,500", "2,400", "New columns: note.",
        "Null in the window from now on: n.", "12 files of /data/clicks would be replaced",
        "70 other records", "date=1/part-9\n  and 2 more", "run it without --dry-run",
    ):  # fmt: skip
        assert part in said
    assert "now" not in said.partition("New columns")[0]


def test_a_report_tells_before_and_now() -> None:
    commit = Commit(4, "4-a", "id", (), {3: 9_000}, 0, ("date=1/part-a", "date=2/part-b"))
    done = replace(
        PLAN, commit=commit, records=2_499, dead_letters=1, without_event_time=5, hive_table="db.t"
    )
    said = told(done)
    for part in (
        "Reprocessed clicks", "2,499", "12 files were replaced by 2 ", "70 other records that stay",
        "5 records have no event time; they are in date=__HIVE", "1 record did not decode",
        "Table db.t has them.",
    ):  # fmt: skip
        assert part in said
    assert "Nothing of that window of clicks was loaded" in told(replace(PLAN, ranges=()))


URL = "jdbc:postgresql://db/w"


def test_a_table_in_the_file_is_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGBUS_JDBC_USER", "loader")
    file = tmp_path / "job.toml"
    file.write_text(f'[reprocess]\ntopic = "t"\njdbc_url = "{URL}"\njdbc_table = "t"\n')
    config, _ = parse_arguments(["--config", str(file), "--from", "earliest"])
    assert config.warehouse == JdbcTable(URL, "t", {"user": "loader"})
    with pytest.raises(LogbusError, match="--compression: for loads into files or tables"):
        parse_arguments(["--config", str(file), "--from", "earliest", "--compression", "zstd"])


def test_a_table_of_a_lake_in_the_file_is_the_target(tmp_path: Path) -> None:
    file, properties = tmp_path / "job.toml", tmp_path / "lake.properties"
    properties.write_text("type=rest\nuri=http://c\n")
    file.write_text(
        f'[reprocess]\ntopic = "t"\niceberg = "prod.lake.t"\nlake_properties = "{properties}"\n'
        "evolve = true\naccept_restore = true\n"
    )
    config, _ = parse_arguments(["--config", str(file), "--from", "earliest"])
    expected = IcebergTable("prod", "lake.t", {"type": "rest", "uri": "http://c"})
    assert (config.warehouse, config.evolve, config.accept_restore) == (expected, True, True)
    with pytest.raises(LogbusError, match="No one target is named"):
        parse_arguments(["--config", str(file), "--from", "earliest", "--warehouse", "/data"])


def test_of_a_table_of_a_lake_files_are_told() -> None:
    config = replace(FILES, warehouse=DeltaTable("s3://lake/clicks"))
    commit = Commit(4, "4-a", "id", (), {3: 9_000}, 0, ("date=1/part-a", "date=2/part-b"))
    done = replace(PLAN, commit=commit, records=2_500, without_event_time=5)
    said = told(done, config)
    assert "12 files were replaced by 2 " in said
    assert "Null in the window from now on: n." in said
    assert "5 records have no event time; they are in the partition of null." in said
    alone = ExistingRows(2_500, 0, files=("part-9",), kept_records=1)
    plan = told(replace(PLAN, before=alone), config)
    assert "1 file of /data/clicks would be replaced; 1 other record there is kept as now:" in plan
    said = told(replace(done, before=alone, without_event_time=1, dead_letters=1), config)
    assert "1 file was replaced by 2 " in said
    assert "with 1 other record that stays as it was, " in said
    assert "1 record has no event time; it is in the partition of null." in said


def test_of_a_table_rows_are_told() -> None:
    config = replace(FILES, warehouse=JdbcTable(URL, "t"))
    plan = replace(PLAN, before=ExistingRows(2_400, 100), columns_added=())
    said = told(plan, config)
    assert "2,500 rows of /data/clicks would be replaced.\nNothing was changed; run" in said
    assert "Null in the window from now on, or of their default: n." in said
    commit = Commit(4, "4-a", "id", (), {3: 9_000}, 2_499, (), dead_letters=1)
    done = replace(plan, commit=commit, records=2_499, dead_letters=1, dead_letters_path="d")
    said = told(done, config)
    assert "2,500 rows of /data/clicks were replaced by 2,500, 1.0 s (write 0.5)." in said
    assert "1 record did not decode; it is in d." in said
    said = told(replace(done, before=ExistingRows(1, 0)), config)
    assert "1 row of /data/clicks was replaced by 2,500, " in said
