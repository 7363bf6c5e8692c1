"""Cases of the models: a rule of the protocol that is broken, and the invariant that tells.

Each runs at the smallest bounds that find it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from bench.servers import ServerUnavailableError
from tests.servers.tlc import MODELS, Explored, explore

#: Marks of bounds that take minutes.
SLOW = [pytest.mark.slow, pytest.mark.timeout(3_600)]


@dataclass(frozen=True)
class Broken:
    """A rule that is broken at these bounds breaks ``invariant``; none if it is found by none."""

    rule: str
    invariant: str
    bounds: dict[str, object] = field(default_factory=dict)


def broken(rule: str, invariant: str, **bounds: object) -> Broken:
    """A case, of which the test's name has the rule."""
    return Broken(rule, invariant, bounds)


def explored(module: str, bounds: dict[str, object], mutant: str = "none") -> Explored:
    """Explores a model; skips the test where TLC is not at hand."""
    try:
        return explore(module, {**bounds, "Mutant": f'"{mutant}"'})
    except ServerUnavailableError as missing:
        pytest.skip(f"TLC is not at hand: {missing}")


def assert_found(module: str, case: Broken) -> None:
    """Breaks the rule in the model, and expects the invariant to tell."""
    found = explored(module, case.bounds, case.rule)
    assert found.violated == case.invariant, (found.steps, found.states)


def assert_holds(module: str, bounds: dict[str, object], *, at_least: int) -> None:
    """Explores the model as it is; fewer states than ``at_least`` are a model that stands still."""
    found = explored(module, bounds)
    assert found.violated == "", found.output
    assert found.states >= at_least


def assert_each_rule_is_broken(module: str, cases: Sequence[Broken]) -> None:
    """Compares the cases with the rules that the model can break."""
    named = set(re.findall(r'Is\("([^"]+)"\)', (MODELS / f"{module}.tla").read_text()))
    assert named == {case.rule for case in cases}
