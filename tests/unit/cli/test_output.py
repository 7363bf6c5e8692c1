"""How verbs print: whole tables into pipes, text and not markup, readable times and sizes."""

from __future__ import annotations

import pytest

from spark_logbus.cli.output import ago, console, human_bytes, plural, table, utc


@pytest.mark.parametrize(
    ("time_us", "shown"),
    [
        (0, "1970-01-01 00:00:00"),
        (-1, "1969-12-31 23:59:59"),
        (1_357_016_400_000_000, "2013-01-01 05:00:00"),
        (2**63 - 1, f"{2**63 - 1} µs"),
    ],
)
def test_times(time_us: int, shown: str) -> None:
    assert utc(time_us) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-5, "0 s"), (59, "59 s"), (60, "1 min"), (7_199, "1 h"), (200_000, "2 d")],
)
def test_ages(seconds: int, shown: str) -> None:
    assert ago(seconds * 1_000_000) == shown


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (5 << 30, "5.0 GiB"),
        (3 << 50, "3072.0 TiB"),
    ],
)
def test_sizes(size: int, shown: str) -> None:
    assert human_bytes(size) == shown


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 records"), (1, "1 record"), (2_000, "2,000 records")]
)
def test_plural(count: int, shown: str) -> None:
    assert plural(count, "record") == shown


def test_a_pipe_gets_long_lines_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    rows = table("topic", "records", numbers=("records",))
    rows.add_row("t" * 200, "1")
    console().print(rows)
    assert "t" * 200 in capsys.readouterr().out


def test_brackets_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    console().print("id in [broker] is missing")
    assert capsys.readouterr().out == "id in [broker] is missing\n"
