"""``scripts/bench move`` runs through with little data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.kit.raw import read_raw
from bench.programs.move import COPY, PROGRAM, SOURCE_MIB, TARGET_MIB

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_a_move_is_measured_beside_a_copy(tmp_path: Path) -> None:
    raw = tmp_path / "raw.csv"
    command = [sys.executable, "-m", "bench", "move", "--rounds", "2", "--gib", "0.01",
               "--directory", str(tmp_path), "--csv", str(raw)]  # fmt: skip
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rounds = read_raw(raw)
    (found,) = PROGRAM.comparing.of(rounds)
    assert found.beside == COPY
    assert all(
        one[each] > 0 for one in rounds["move"]["logbus"] for each in (SOURCE_MIB, TARGET_MIB)
    )
