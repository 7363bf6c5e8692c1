"""How verbs print: whole tables into pipes, text and not markup, readable times and sizes."""

from __future__ import annotations

import io
import json
import os
import pty
import re

import pytest

from spark_logbus.cli.output import (
    CHANGE,
    MARK,
    MOMENT,
    NUMBER,
    SIZE,
    WORDS,
    Column,
    Console,
    Table,
    ago,
    console,
    utc,
)
from spark_logbus.plurals import plural
from spark_logbus.sizes import human_bytes


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


def rows() -> Table:
    """One row of each kind of column, and one without values."""
    made = Table(
        Column("topic"),
        Column("readers", WORDS),
        Column("records", NUMBER),
        Column("size_bytes", SIZE, "size"),
        Column("change", CHANGE),
        Column("last_commit_us", MOMENT, "last commit (UTC)"),
        Column("cut", MARK),
    )
    made.add(
        {
            "topic": "t" * 200,
            "readers": ["a", "b"],
            "records": 1234,
            "size_bytes": 2048,
            "change": 5,
            "last_commit_us": 1_357_016_400_000_000,
            "cut": True,
            "note": "only in JSON",
        }
    )
    made.add({"topic": "none", "readers": [], "records": None, "cut": False})
    return made


def test_a_pipe_gets_aligned_columns_of_raw_values(capsys: pytest.CaptureFixture[str]) -> None:
    rows().print()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [
        ["TOPIC", "READERS", "RECORDS", "SIZE-BYTES", "CHANGE", "LAST-COMMIT", "CUT"],
        ["t" * 200, "a,b", "1234", "2048", "+5", "2013-01-01T05:00:00Z", "*"],
        ["none", "-", "-", "-", "-", "-", "-"],
    ]
    assert len({line.rindex(end) for line, end in zip(lines, ["CUT", "*", "-"], strict=True)}) == 1


def test_json_has_raw_values_and_keys_without_a_column(capsys: pytest.CaptureFixture[str]) -> None:
    rows().print(as_json=True)
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["size_bytes"], first["readers"], first["note"]) == (
        2048,
        ["a", "b"],
        "only in JSON",
    )
    assert second["records"] is None


def test_a_terminal_gets_boxes_and_values_for_people() -> None:
    screen, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stream:
        Console(stream).print(rows())
        data = b""
        while "┘".encode() not in data:  # a terminal hands it over in pieces
            data += os.read(screen, 100_000)
        shown = data.decode()
    os.close(screen)
    assert "last" in shown
    for part in ("┃", "a, b", "1,234", "2.0 KiB", "2013-01-01 05:00:00"):
        assert part in shown


def test_a_table_without_rows_says_so_beside_standard_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Table(Column("topic")).print(empty="There are no topics.")
    assert capsys.readouterr() == ("", "There are no topics.\n")
    Table(Column("topic")).print(as_json=True, empty="There are no topics.")
    assert capsys.readouterr() == ("", "")


def test_brackets_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    console().print("id in [broker] is missing")
    assert capsys.readouterr().out == "id in [broker] is missing\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def in_a_terminal(table: Table, width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """The text of a table, without its styles."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    Console(terminal).print(table)
    return re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())


@pytest.mark.parametrize("width", [70, 80, 100, 200])
@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:26048", "broker-17.kafka-replacement.eu-west-1.internal.example.com:9192"],
)
def test_words_of_a_table_are_never_broken(
    monkeypatch: pytest.MonkeyPatch, width: int, address: str
) -> None:
    """Words that are cut in two cannot be copied: an address, a name, a number."""
    table = Table(
        Column("broker", NUMBER),
        Column("address"),
        Column("version"),
        Column("started_us", MOMENT, "started (UTC)"),
        Column("partitions", NUMBER, "leads"),
        Column("size_bytes", SIZE, "size"),
        Column("state"),
    )
    state = f"does not answer: Cannot connect to broker 1 at {address}: refused"
    started_us = 1_357_016_400_000_000
    row = {"broker": 1, "address": address, "version": "0.1.0", "started_us": started_us,
           "partitions": 12_345, "size_bytes": 838_860, "state": state}  # fmt: skip
    table.add(row)
    shown = in_a_terminal(table, width, monkeypatch)
    assert shown.count(address) == 2
    for word in ("12,345", "819.2", "2013-01-01", "05:00:00", "0.1.0", *state.split()):
        assert word in shown
    lines = [line for line in shown.splitlines() if line.strip()]
    if width >= 80 and len(address) < 20:
        assert max(map(len, lines)) <= width
    assert any(address in line for line in table.plain())
