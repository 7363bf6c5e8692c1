"""Shell that all benchmarks share: flags, rounds, results, tables and charts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
"""Folder of the project."""
