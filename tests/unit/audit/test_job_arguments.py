"""The command lines of jobs/audit_completeness.py and ``logbus audit``, before anything is read."""

from __future__ import annotations

import time

import pytest

from jobs.audit_completeness import main, parse_arguments
from spark_logbus.audit import AUDIT_TOPIC
from spark_logbus.cli.app import app
from spark_logbus.load import DeltaTable

HOUR_US = 3_600_000_000


def test_defaults_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGBUS_ZOOKEEPER", "zk:2181/logbus")
    before_us = time.time_ns() // 1_000
    args = parse_arguments(["--topic", "clicks"])
    assert before_us <= args.since + 24 * HOUR_US <= time.time_ns() // 1_000
    assert (args.zookeeper, args.audit_topic, args.wait) == ("zk:2181/logbus", AUDIT_TOPIC, 90e6)
    assert (args.until, args.window, args.warehouse, args.mirror, args.json) == (
        None, None, None, None, False
    )  # fmt: skip


def test_times_and_lengths_of_the_job() -> None:
    args = parse_arguments(
        ["--topic", "t", "--since", "1970-01-02", "--until", "1970-01-02T01:00Z", "--window", "1h"]
    )
    assert (args.since, args.until, args.window) == (24 * HOUR_US, 25 * HOUR_US, HOUR_US)


@pytest.mark.parametrize(
    "wrong",
    [["--since", "yesterday"], ["--until", "2026-13-01"], ["--window", "5"], ["--wait", "x"]],
)
def test_what_is_no_time_is_wrong_usage(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as of_job:
        parse_arguments(["--topic", "t", *wrong])
    assert wrong[1] in capsys.readouterr().err
    with pytest.raises(SystemExit) as of_verb:
        app(["audit", "t", *wrong])
    assert (of_job.value.code, of_verb.value.code) == (2, 2)
    assert wrong[0] in capsys.readouterr().err


def test_a_name_that_is_none_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--topic", "a/b"]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("The audit failed: 'a/b' cannot name a topic")
    assert len(shown.splitlines()) == 1


def test_a_table_of_a_lake_is_named_for_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_arguments(["--topic", "t"]).table is None
    given = parse_arguments(["--topic", "t", "--delta", "s3://lake/t", "--warehouse", "/data"])
    assert (given.table, given.warehouse) == (DeltaTable("s3://lake/t"), "/data")
    assert main(["--topic", "t", "--delta", "/t", "--iceberg", "c.n.t"]) == 2
    assert "--delta and --iceberg each name a table" in capsys.readouterr().out
