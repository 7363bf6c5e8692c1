"""The documents name tests for what they claim; the tests are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
NAMED = re.compile(r"\[(test_\w+)\]\(([^)]+)\)")


@pytest.mark.parametrize("page", ["failures.md", "guarantees.md", "scenarios.md"])
def test_every_test_that_a_page_names_is_there(page: str) -> None:
    named = NAMED.findall((DOCS / page).read_text())
    assert len(named) > 10
    missing = [
        name
        for name, link in named
        if f"def {name}(" not in (DOCS / link).resolve(strict=True).read_text()
    ]
    assert missing == []


def test_every_failure_has_a_test() -> None:
    rows = [line for line in (DOCS / "failures.md").read_text().splitlines() if line[:1] == "|"]
    failures = [row for row in rows if not row.startswith(("| What goes", "|---"))]
    assert len(failures) >= 29
    assert [row for row in failures if not NAMED.search(row)] == []


def test_every_scenario_of_the_spark_source_has_a_test() -> None:
    rows = [line for line in (DOCS / "scenarios.md").read_text().splitlines() if line[:1] == "|"]
    scenarios = [row for row in rows if not row.startswith(("| What a user", "|---"))]
    assert len(scenarios) > 40
    assert [row for row in scenarios if "tests/integration/" not in row] == []
