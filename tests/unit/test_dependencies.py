"""Checks of what pyproject.toml and constraints.txt say of the packages that logbus needs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def name_of(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def without_extras(requirement: str) -> str:
    return re.sub(r"\[.*?\]", "", requirement)


@pytest.mark.parametrize(("extra", "library"), [("delta", "deltalake"), ("iceberg", "pyiceberg")])
def test_the_libraries_of_a_lake_are_bounded_and_tested_as_they_are_offered(
    extra: str, library: str
) -> None:
    """Names below their surface are relied on, so not any version will do."""
    (requirement,) = EXTRAS[extra]
    assert name_of(requirement) == library
    assert ">=" in requirement
    assert "<" in requirement
    # The tests may need more of its own extras.
    assert without_extras(requirement) in map(without_extras, EXTRAS["dev"])


def test_what_the_tests_are_run_with_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [name_of(line) for line in lines if "==" in line]
    assert len(pinned) == len(set(pinned))
    needed = {name_of(each) for extra in ("demo", "dev") for each in EXTRAS[extra]}
    assert needed - set(pinned) == set()
