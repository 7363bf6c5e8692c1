"""``logbus produce`` and ``consume`` against a real cluster, as a user types them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import wait_until, without_waiting
from tests.servers.cluster import Logbus
from tests.servers.command import Command, Ended


def test_lines_with_keys_from_a_file(command: Command, logbus: Logbus, tmp_path: Path) -> None:
    name = logbus.topic()
    lines = tmp_path / "lines"
    lines.write_bytes(b"k=1\nno key\r\n\n=x=y\nlast")
    done = command("produce", name, str(lines), "--key-separator", "=")
    assert done.out == ""
    assert re.fullmatch(
        rf"Published 5 records to {name} in \d+\.\d s\.\n"
        r"3 of 5 lines do not have the key separator '=', and no key: the first is line 2\.\n",
        done.err,
    )
    shown = command("consume", name, "--metadata").out.splitlines()
    columns = [line.split("\t") for line in shown]
    assert [(c[0], c[1], c[3], c[4]) for c in columns] == [
        ("0", "0", "k", "1"),
        ("0", "1", "-", "no key"),
        ("0", "2", "-", ""),
        ("0", "3", "", "x=y"),
        ("0", "4", "-", "last"),
    ]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", columns[0][2])


def test_separators_as_people_type_them(command: Command, logbus: Logbus) -> None:
    name = logbus.topic()
    pairs = (("\\t", b"a\tb"), ("\t", b"c\td"), ("\\x7c", b"e|f"), ("\\\\", b"g\\h"))
    for typed, line in (*pairs, ("\\xff", b"i\xffj")):  # a byte, not a letter
        assert command("produce", name, "--key-separator", typed, stdin=line).code == 0
    shown = command("consume", name, "--metadata").out.splitlines()
    assert [line.split("\t")[3:] for line in shown] == [[*"ab"], [*"cd"], [*"ef"], [*"gh"], [*"ij"]]
    for typed in ("", "\\q", "\\x4", "\\", "\\x0a"):
        refused = command("produce", name, "--key-separator", typed, stdin=b"x\n").refusal
        assert f"--key-separator is {typed!r}; " in refused


def test_a_separator_that_no_line_has(command: Command, logbus: Logbus) -> None:
    name = logbus.topic()
    done = command("produce", name, "--key-separator", "\\t", stdin=b"a:1\nb:2\n")
    assert done.code == 1
    published, error = done.err.splitlines()
    assert published.startswith("Published 2 records")
    assert error.startswith(r"Error: No line has the key separator '\t'")
    assert command("produce", name, "--key-separator", ":").code == 0, "there was no line"


def test_what_is_given_for_all_records(command: Command, logbus: Logbus, tmp_path: Path) -> None:
    name = logbus.topic(partitions=2)
    shown = ["consume", name, "-f", r"%p|%k|%S|%s|%h|%T\n"]
    all_of_them = [
        "-k",
        "key",
        "-H",
        "a=1",
        "-H",
        "b",
        "-p",
        "1",
        "--timestamp",
        "1970-01-01T00:01Z",
    ]
    assert command("produce", name, *all_of_them, "-Z", stdin=b"x\n\n").code == 0
    assert command(*shown).out == "1|key|1|x|a=1,b=NULL|60000\n1|key|-1||a=1,b=NULL|60000\n"
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"1\n2\n")
    two.write_bytes(b"\0")
    start = ["-o", "2", "-p", "1", "-f", "%S,"]
    command(
        "produce", name, str(one), str(two), "--whole-files", "-p", "1", "--compression", "zstd"
    )
    assert command("consume", name, *start).out == "4,1,"
    command("produce", name, "-D", r"\0", "-p", "1", stdin=b"a\nb\0c")
    assert command("consume", name, "-o", "4", "-p", "1", "-f", "[%s]").out == "[a\nb][c]"


def test_json_there_and_back(command: Command, logbus: Logbus) -> None:
    name, copy = logbus.topic(), logbus.topic()
    lines = (
        '{"key": "k", "value": "é", "headers": {"a": "1"}, "timestamp_us": 5}\n'
        '{"value": {"base64": "/w=="}}\n{"value": null, "key": ""}\n'
    )
    assert "Published 3 records" in command("produce", name, "-J", stdin=lines.encode()).err
    first = command("consume", name, "-J").out
    assert command("produce", copy, "-J", stdin=first.encode()).code == 0
    assert command("consume", copy, "-J").out == first.replace(name, copy)
    three = b'{"value": "x"}\n{"value": 7}\n{"value": "y"}\n'
    wrong = command("produce", name, "-J", stdin=three).refusal
    assert "Line 2 of standard input cannot be published. Its value is 7" in wrong
    assert wrong.endswith("Published before it: 1 record.")
    assert sum(logbus.ends(name).values()) == 4
    beyond = command("produce", name, "-p", "7", stdin=b"x\n").refusal
    assert "Line 1 of standard input cannot be published" in beyond


def test_an_interrupted_producer_tells_what_was_published(logbus: Logbus) -> None:
    name = logbus.topic()
    command = [sys.executable, "-m", "spark_logbus.cli", "produce", name, "-z", logbus.zookeeper]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"a\nb\nc\n")
        process.stdin.flush()
        wait_until(lambda: sum(logbus.ends(name).values()) == 3, message="three records")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr is not None
        told = without_waiting(process.stderr.read().decode())
    assert re.fullmatch(rf"Interrupted: published 3 records to {name} in \d+\.\d s\.\n", told)


def test_lines_from_standard_input(command: Command, logbus: Logbus) -> None:
    name = logbus.topic()
    command("produce", name, stdin=b"1\n2\n")
    assert "Published 0 records" in command("produce", name).err
    assert command("consume", name).out == "1\n2\n"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "a\nb\nc\nd\n"),
        (["--partition", "1"], "d\n"),
        (["--max", "2"], "a\nb\n"),
        (["--max", "4"], "a\nb\nc\nd\n"),
        (["--start", "latest"], ""),
        (["--start", "-2 records"], "b\nc\nd\n"),
        (["--start", "-36500 days"], "a\nb\nc\nd\n"),
        (["--start", "-1 hour"], ""),  # the records are of 1970
        (["--start", "2"], "c\n"),  # partition 1 ends before it
        (["--start", "3", "--partition", "0"], ""),  # its end
        (["--follow", "--max", "2", "--partition", "0"], "a\nb\n"),
        (["-o", "1970-01-01T00:00:02Z", "-p", "0"], ""),
        (["-o", "1970-01-01", "-n", "1", "-f", r"%p@%o:%S\n"], "0@0:1\n"),
    ],
)
def test_what_is_consumed(command: Command, topic: str, options: list[str], expected: str) -> None:
    assert command("consume", topic, *options) == Ended(0, expected, "")


def test_several_topics_are_consumed(command: Command, logbus: Logbus, topic: str) -> None:
    other = logbus.topic(name=f"{topic}-other")
    logbus.produce(other, ["x", None])
    lines = command("consume", topic, other, "--json").out.splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["value"] for record in records] == ["a", "b", "c", "d", "x", None]
    assert {record["topic"] for record in records} == {topic, other}
    assert command("consume", "-r", f"{topic}.*", "-f", "%s").out == "abcdx"
    assert command("consume", "-F", "-n", "5", topic, other, "-f", "%s").out.count("x") <= 1
    assert "No topic matches no-such.*" in command("consume", "-r", "no-such.*").refusal
    assert "is no regular expression" in command("consume", "-r", "(").refusal
    assert "--format has '%q'" in command("consume", topic, "-f", "%q").refusal
    assert "Choose one of" in command("consume", topic, "-f", "%s", "--json").refusal


def test_a_group_consumes_each_record_once(command: Command, logbus: Logbus, topic: str) -> None:
    group = f"cli-{topic}"
    first = command("consume", topic, "-g", group, "-n", "2")
    rest = command("consume", topic, "-g", group)
    assert sorted((first.out + rest.out).split()) == [*"abcd"]
    assert len(first.out.split()) == 2
    assert command("consume", topic, "-g", group) == Ended(0, "", "")
    logbus.produce(topic, ["e"])
    assert command("consume", topic, "-g", group, "-F", "-n", "1").out == "e\n"
    refused = command("consume", topic, "-g", group, "-p", "1").refusal
    assert "leave out --partition or --group" in refused


def test_wrong_input_of_consume(command: Command, topic: str) -> None:
    assert "no no-such; it has: " in command("consume", "no-such").refusal
    wrong = command("consume", topic, "--partition", "9").refusal
    assert f"no {topic}-9; it has: {topic}-0, {topic}-1." in wrong
    assert (
        "'soon'; use earliest, latest, an offset"
        in command("consume", topic, "--start", "soon").refusal
    )
    unit = command("consume", topic, "--start", "-5 fortnights").refusal
    assert "--start: expected a number and a unit" in unit
    beyond = command("consume", topic, "--start", "4").refusal
    assert f"--start is 4, but the last offset is 2 ({topic}-0: 3, {topic}-1: 1)" in beyond


def test_wrong_input_of_produce(command: Command, topic: str, tmp_path: Path) -> None:
    assert "no topic 'no-such'; create it" in command("produce", "no-such", stdin=b"x\n").refusal
    assert "no topic 'no-such'; create it" in command("produce", "no-such").refusal
    missing = tmp_path / "missing"
    assert f"Cannot read {missing}: No such file" in command("produce", topic, str(missing)).refusal
    assert "Is a directory" in command("produce", topic, str(tmp_path)).refusal
    assert "none, lz4 or zstd" in command("produce", topic, "--compression", "gzip").refusal
    assert "leave out" in command("produce", topic, "--json", "-K", ":").refusal
    assert "Name the files" in command("produce", topic, "--whole-files").refusal
    refusal = command("produce", topic, "--acks", "all").refusal
    assert "'all'; use none, written, flushed or replicated" in refusal


@pytest.mark.long
def test_a_reader_that_has_enough(logbus: Logbus) -> None:
    """Runs ``logbus consume ... | head -1``: no message, though most is never read."""
    name = logbus.topic()
    logbus.produce(name, [f"record {number} {'x' * 100}" for number in range(20_000)])
    process = subprocess.Popen(
        [sys.executable, "-m", "spark_logbus.cli", "consume", name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "LOGBUS_ZOOKEEPER": logbus.zookeeper},
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"record 0 ")
        process.stdout.close()
        assert without_waiting(process.stderr.read().decode()) == ""
    assert process.returncode == 0
