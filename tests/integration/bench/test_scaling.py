"""``scripts/bench scaling`` runs through with few records."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from bench.kit.raw import read_raw
from bench.programs.scaling.results import tables
from bench.programs.scaling.rows import ROWS

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_all_rows_of_scaling_run_at_small_sizes(tmp_path: Path) -> None:
    raw, charts = tmp_path / "raw.csv", tmp_path / "charts"
    command = [sys.executable, "-m", "bench", "scaling", "--alone", "--small", "--csv", str(raw),
               "--charts", str(charts), "--directory", str(tmp_path)]  # fmt: skip
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    with raw.open(newline="") as file:
        assert {line["row"].rpartition(" ")[0] for line in csv.DictReader(file)} == set(ROWS)
    assert {path.name.rpartition("-")[0] for path in charts.iterdir()} == {
        f"scaling-{row}" for row in ROWS
    }
    assert set(ROWS) <= set(tables(read_raw(raw)))
