"""``scripts/bench peers`` runs through with few records, and compares what it reads."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.programs.peers.java_clients import SOURCES, SilentServerError, run_java
from bench.servers import ServerUnavailableError
from bench.servers.java_programs import compiled

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_the_papers_experiments_run_with_few_records(tmp_path: Path) -> None:
    raw = tmp_path / "raw.csv"
    command = [sys.executable, "-m", "bench", "peers", "--peers", "logbus", "--rounds", "1",
               "--rows", "throughput", "--records", "2000", "--csv", str(raw)]  # fmt: skip
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    with raw.open(newline="") as file:
        contenders = {line["contender"] for line in csv.DictReader(file)}
    assert contenders == {"logbus", "logbus, Arrow"}


@pytest.mark.slow
def test_leaders_end_in_both_ways(tmp_path: Path) -> None:
    raw = tmp_path / "raw.csv"
    command = [sys.executable, "-m", "bench", "peers", "--peers", "logbus", "--rounds", "1",
               "--rows", "failover", "--replicas", "1", "--csv", str(raw)]  # fmt: skip
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    with raw.open(newline="") as file:
        metrics = {line["metric"] for line in csv.DictReader(file)}
    assert metrics == {"leader killed", "leader stopped"}


STALLING = """
final class StallingClient extends Client {
    StallingClient(java.util.Map<String, String> settings) {
        new Thread(() -> java.util.concurrent.locks.LockSupport.park()).start();
    }

    @Override void send(long records) {
        throw new IllegalStateException("no server");
    }

    @Override void receiveUntil(long total) {
        throw silence(total);
    }

    @Override public void close() { }

    public static void main(String[] arguments) {
        run(arguments, StallingClient::new);
    }
}
"""


@pytest.mark.parametrize(
    ("does", "error", "said"),
    [
        ("receive", SilentServerError, "Expected 9 records, got no more after 0"),
        ("send", SystemExit, "ended with code 1: .*no server"),
    ],
)
def test_a_java_client_ends_whatever_threads_it_leaves(
    tmp_path: Path, does: str, error: type[BaseException], said: str
) -> None:
    shutil.copy(SOURCES / "Client.java", tmp_path)
    source = tmp_path / "StallingClient.java"
    source.write_text(STALLING)
    given = {"does": does, "records": 9, "warm_up": 0, "value_bytes": 200}
    with ExitStack() as stack:
        try:
            program = stack.enter_context(compiled(source, []))
        except ServerUnavailableError as missing:
            pytest.skip(str(missing))
        with pytest.raises(error, match=f"(?s){said}"):
            run_java(program, given, deadline_s=60)
