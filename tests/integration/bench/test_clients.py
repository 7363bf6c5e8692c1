"""``scripts/bench clients`` runs through with few records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.kit.raw import read_raw, read_runs
from bench.programs.clients.rows import ROWS

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_all_rows_of_clients_run_with_few_records(tmp_path: Path) -> None:
    raw = tmp_path / "raw.csv"
    command = [sys.executable, "-m", "bench", "clients", "--alone", "--rounds", "1",
               "--records", "1234", "--csv", str(raw)]  # fmt: skip
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert set(read_raw(raw)) == set(ROWS)


@pytest.mark.long
def test_runs_have_servers_of_their_own_and_one_file(tmp_path: Path) -> None:
    raw = tmp_path / "raw.csv"
    command = [sys.executable, "-m", "bench", "runs", "2", "clients", "--alone", "--rounds", "1",
               "--rows", "iterate", "--records", "1234", "--csv", str(raw)]  # fmt: skip
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Run 2 of 2:" in ended.stdout
    assert [set(run) for run in read_runs(raw)] == [{"iterate"}, {"iterate"}]
