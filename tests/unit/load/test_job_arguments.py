"""The command line of jobs/load_warehouse.py."""

from __future__ import annotations

import pytest

from jobs.load_warehouse import main, parse_arguments
from spark_logbus.errors import InvalidNameError
from spark_logbus.load import LoadConfig

REQUIRED = ["--topic", "clicks", "--warehouse", "/data"]


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGBUS_ZOOKEEPER", "zk:2181/logbus")
    assert parse_arguments(REQUIRED) == LoadConfig("clicks", "/data", "zk:2181/logbus")


def test_everything() -> None:
    more = ["--zookeeper", "zk:1/x", "--group", "g", "--json-schema", "a int", "--allow-gaps"]
    assert parse_arguments([*REQUIRED, *more, "--drop-value", "--audit"]) == LoadConfig(
        "clicks", "/data", "zk:1/x", json_schema="a int", allow_gaps=True, group="g",
        drop_value=True, audit=True,
    )  # fmt: skip


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
