"""The command line, as a user runs it: what it prints, and how it fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import wait_until
from tests.integration.spark_fixtures import Logbus

LOGBUS = [sys.executable, "-m", "spark_logbus.cli"]


def run(
    logbus: Logbus | None, *arguments: str, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "120"}
    if logbus is not None:
        environment["LOGBUS_ZOOKEEPER"] = logbus.zookeeper
    return subprocess.run(
        [*LOGBUS, *arguments], input=text, capture_output=True, text=True,
        env=environment, timeout=120, check=False,
    )  # fmt: skip


def test_a_topic_from_creation_to_deletion(logbus: Logbus) -> None:
    assert (
        "ready with 2 partitions"
        in run(logbus, "topics", "create", "cli", "--partitions", "2").stdout
    )
    published = run(logbus, "produce", "cli", "--key-separator", ":", text="k:1\nk:2\nk:3\n")
    assert "Published 3 records" in published.stderr
    assert run(logbus, "consume", "cli").stdout == "1\n2\n3\n"
    assert run(logbus, "consume", "cli", "--max", "1").stdout == "1\n"
    fields = run(logbus, "consume", "cli", "--metadata", "--max", "1").stdout.split("\t")
    assert fields[1] == "0"
    assert fields[3:] == ["k", "1\n"]
    assert " cli " in run(logbus, "topics", "list").stdout
    assert "broker 1 at" in run(logbus, "topics", "describe", "cli").stdout
    assert run(logbus, "topics", "delete", "cli", "--yes").returncode == 0
    assert " cli " not in run(logbus, "topics", "list").stdout


def test_a_rewind_is_a_dry_run_until_it_is_executed(logbus: Logbus) -> None:
    topic = logbus.topic()
    logbus.produce(topic, ["a", "b", "c"], timestamp_us=1_000_000)
    logbus.produce(topic, ["d"], timestamp_us=9_000_000)
    logbus.rewind("cli-group", logbus.ends(topic))  # sets it to the end
    time = "1970-01-01T00:00:05Z"
    dry = run(logbus, "groups", "rewind", "cli-group", "--to-time", time)
    assert "1 record" in dry.stdout
    assert "Nothing was changed" in dry.stdout
    assert logbus.committed("cli-group") == logbus.ends(topic)
    done = run(logbus, "groups", "rewind", "cli-group", "--to-time", time, "--execute")
    assert done.returncode == 0
    assert set(logbus.committed("cli-group").values()) == {3}
    assert "3" in run(logbus, "groups", "describe", "cli-group").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("consume", "nope"), "has no nope"),
        (("topics", "describe", "nope"), "nope"),
        (("topics", "delete", "nope", "--yes"), "nope"),
        (("topics", "create", "a/b"), "'a/b' cannot name a topic"),
        (("topics", "create", "x", "--config", "retention.ms=soon"), "soon"),
        (("groups", "rewind", "nobody", "--to-earliest"), "nobody"),
        (("groups", "rewind", "nobody"), "--to-time"),
        (("produce", "nope", "/no/such/file"), "/no/such/file"),
        (("broker", "--config", "/no/such/file"), "/no/such/file"),
        (("dump", "/no/such/file"), "/no/such/file"),
    ],
)
def test_errors_are_one_sentence(logbus: Logbus, arguments: tuple[str, ...], message: str) -> None:
    done = run(logbus, *arguments)
    assert done.returncode in (1, 2)
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_dump_finds_damage(logbus: Logbus, tmp_path: Path) -> None:
    from spark_logbus.record.arrow import encode
    from spark_logbus.record.builder import ArrowBatchBuilder

    builder = ArrowBatchBuilder()
    builder.add(value=b"hello", key=None, timestamp_us=0, headers=None)
    segment = tmp_path / "00000000000000000000.log"
    data = bytearray(encode(builder.build()))
    segment.write_bytes(data)
    shown = run(None, "dump", str(segment), "--records")
    assert shown.returncode == 0, shown.stderr
    assert "hello" in shown.stdout
    data[-9] ^= 1
    segment.write_bytes(data)
    assert run(None, "dump", str(segment)).returncode == 1


def test_up_stops_everything_and_continues(tmp_path: Path) -> None:
    """SIGTERM ends ZooKeeper and the broker; a second start has the data and the ports."""
    addresses = []
    for turn in range(2):
        output = tmp_path / f"up-{turn}.out"
        with output.open("wb") as sink:
            process = subprocess.Popen(
                [*LOGBUS, "up", "--data", str(tmp_path / "data")], stdout=sink, stderr=sink
            )
        try:
            wait_until(lambda: b"logbus is up" in output.read_bytes(), deadline_s=120)  # noqa: B023
            address = next(word for word in output.read_text().split() if word.endswith("/logbus"))
            addresses.append(address)
            if turn == 0:
                run(None, "topics", "create", "kept", "--zookeeper", address)
            else:
                assert " kept " in run(None, "topics", "list", "--zookeeper", address).stdout
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        left = run_ps(str(tmp_path))
        assert left == [], left
    assert addresses[0] == addresses[1]


def run_ps(part: str) -> list[str]:
    """Command lines of processes that name ``part``."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode("utf-8", "replace").split("\0")
        except OSError:
            continue
        if any(part in word for word in words) and str(os.getpid()) not in entry.parts:
            found.append(" ".join(words))
    return found
