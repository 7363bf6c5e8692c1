"""Short runs of the fuzzers by default; LOGBUS_FUZZ_SECONDS (600) for all in the slow suite."""

from __future__ import annotations

import os
import random

import pytest

from tests.fuzz.harness import fuzz

FUZZERS = ["tests.fuzz.record_batches", "tests.fuzz.data_directories"]
SECONDS = float(os.environ.get("LOGBUS_FUZZ_SECONDS", "600"))
MOST_MIB = 600


def check(outcomes: dict[str, int], *, at_least: int) -> None:
    assert outcomes.pop("peak_mib") < MOST_MIB
    assert sum(outcomes.values()) >= at_least
    assert len(outcomes) > 1, "inputs of one kind only are no test"


@pytest.mark.parametrize("module", FUZZERS)
def test_damaged_input_is_met_with_typed_errors(module: str) -> None:
    check(fuzz(module, seconds=2, first=0), at_least=20)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("module", FUZZERS)
def test_damaged_input_is_met_with_typed_errors_at_length(module: str) -> None:
    first = random.SystemRandom().randrange(1 << 40)
    check(fuzz(module, seconds=SECONDS / len(FUZZERS), first=first), at_least=1000)
