"""``scripts/bench clients`` runs through with few records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.clients.rows import ROWS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_all_rows_of_clients_run_with_few_records(tmp_path: Path) -> None:
    raw = tmp_path / "raw.csv"
    command = [sys.executable, "-m", "bench", "clients", "--alone", "--rounds", "1",
               "--records", "1234", "--csv", str(raw)]  # fmt: skip
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert {line.partition(",")[0] for line in raw.read_text().splitlines()[1:]} == set(ROWS)
