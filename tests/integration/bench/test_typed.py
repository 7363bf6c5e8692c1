"""``scripts/bench typed`` runs through with few records."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from bench.typed.report import tables
from bench.typed.rows import of_letter

ROOT = Path(__file__).resolve().parents[3]

# Without those that need jars from the network.
MEASURES = "abcef"


@pytest.mark.long
def test_measures_of_typed_topics_run_with_few_records(tmp_path: Path) -> None:
    raw = tmp_path / "raw.csv"
    command = [sys.executable, "-m", "bench", "typed", "--rounds", "1", "--rows", "60000",
               "--measures", ",".join(MEASURES), "--csv", str(raw)]  # fmt: skip
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    with raw.open(newline="") as file:
        found = [line["row"] for line in csv.DictReader(file)]
    assert {of_letter(row)[0] for row in found} == set(MEASURES)
    shown = tables(raw)
    assert shown["reads"].count("| `c` |") == 3
    assert shown["bytes"].count("| `f` |") == 5
