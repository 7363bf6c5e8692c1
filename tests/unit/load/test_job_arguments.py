"""The command line of jobs/load_warehouse.py."""

from __future__ import annotations

import pytest

from jobs.load_warehouse import main, parse_arguments
from spark_logbus.errors import ConfigError, InvalidNameError
from spark_logbus.load import FileFormat, LayoutChoice, LoadConfig, Period
from spark_logbus.load.command import Output

REQUIRED = ["--topic", "clicks", "--warehouse", "/data"]


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGBUS_ZOOKEEPER", "zk:2181/logbus")
    config = LoadConfig("clicks", "/data", "zk:2181/logbus")
    assert parse_arguments(REQUIRED) == (config, Output(as_json=False, nothing_new_code=0))


def test_everything() -> None:
    more = [
        "--zookeeper", "zk:1/x", "--group", "g", "--json-schema", "a int", "--allow-gaps",
        "--drop-value", "--partition-by", "hour", "--event-time", "at", "--partition-columns",
        "a,b", "--partition-prefix", "p_", "--format", "orc", "--compression", "zstd", "--json",
        "--nothing-new-exit-code", "99", "--from", "earliest", "--until", "-10",
        "--max-records", "5", "--max-bytes", "6", "--dead-letters", "--audit",
        "--compact",
    ]  # fmt: skip
    config, output = parse_arguments([*REQUIRED, *more])
    assert config == LoadConfig(
        "clicks", "/data", "zk:1/x", json_schema="a int", allow_gaps=True, group="g",
        drop_value=True, compression="zstd", start="earliest", until="-10", max_records=5,
        max_bytes=6, dead_letters=True, compact=8, audit=True,
        layout=LayoutChoice(
            period=Period.HOUR, prefix="p_", columns=("a", "b"), event_time="at",
            format=FileFormat.ORC,
        ),
    )  # fmt: skip
    assert output == Output(as_json=True, nothing_new_code=99)


def test_the_event_time_has_two_names() -> None:
    assert parse_arguments([*REQUIRED, "--date-column", "at"]) == parse_arguments(
        [*REQUIRED, "--event-time", "at"]
    )


@pytest.mark.parametrize("wrong", [["--topic", "a/b"], ["--topic", ".."], ["--group", "a b"]])
def test_names_are_checked_before_spark_starts(wrong: list[str]) -> None:
    with pytest.raises(InvalidNameError, match="cannot name a"):
        parse_arguments([*REQUIRED, *wrong])


def test_a_wrong_name_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*REQUIRED, "--topic", "a/b"]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("The load failed: 'a/b' cannot name a topic; use letters")
    assert len(shown.splitlines()) == 1


@pytest.mark.parametrize("missing", ["--topic", "--warehouse"])
def test_required(missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    kept = [word for word in REQUIRED if word != missing]
    with pytest.raises(SystemExit) as ended:
        parse_arguments(kept)
    assert ended.value.code == 2
    capsys.readouterr()


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--from", "latest"], "--from latest would load nothing"),
        (["--until", "soon"], "--until: expected"),
        (["--max-records", "0"], "--max-records is 0, expected 1 or more"),
        (["--avro-schema", "/no/such/file"], "--avro-schema /no/such/file cannot be read"),
        (["--avro-schema", "/dev/null", "--json-schema", "a int"], "values are one or the other"),
        (["--drop-value"], "--drop-value without --json-schema or --avro-schema"),
    ],
)
def test_values_are_checked_before_spark_starts(more: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse_arguments([*REQUIRED, *more])
