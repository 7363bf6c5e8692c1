"""``scripts/bench typed`` runs through with few records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.kit.raw import read_raw
from bench.programs.typed.rows import COMPARED as TYPED

ROOT = Path(__file__).resolve().parents[3]

# Without those that need jars from the network.
MEASURES = "abcef"


@pytest.mark.slow
def test_measures_of_typed_topics_run_with_few_records(tmp_path: Path) -> None:
    raw = tmp_path / "raw.csv"
    command = [sys.executable, "-m", "bench", "typed", "--rounds", "1", "--rows", "60000",
               "--measures", ",".join(MEASURES), "--csv", str(raw)]  # fmt: skip
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = TYPED.of(read_raw(raw))
    assert {each.row for each in found} == set(MEASURES)
    assert len({each.what for each in found if each.row == "c"}) == 3
    assert len({each.own for each in found if each.row == "f"}) == 4
