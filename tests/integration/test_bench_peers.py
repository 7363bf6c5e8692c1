"""``scripts/bench peers`` runs through with few records, and compares what it reads."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_the_papers_experiments_run_with_few_records(tmp_path: Path) -> None:
    raw, charts = tmp_path / "raw.csv", tmp_path / "charts"
    command = [sys.executable, "-m", "bench", "peers", "--peers", "logbus", "--rounds", "1",
               "--rows", "throughput", "--records", "2000",
               "--csv", str(raw), "--charts", str(charts)]  # fmt: skip
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    with raw.open(newline="") as file:
        contenders = {line["contender"] for line in csv.DictReader(file)}
    assert contenders == {"logbus", "logbus, Arrow"}
    assert {path.name for path in charts.iterdir()} == {
        f"peers-{name}.svg" for name in ("producer", "consumer", "disk")
    }
