"""How many examples a property is tried with.

Each test says how many there are in a run of all tests. A run without the longer tests loads a
profile that takes a part of them.
"""

from __future__ import annotations

from hypothesis import settings

#: Hypothesis's own number of examples, which stands for all of a test's.
_ALL = 100


def examples(count: int) -> int:
    """Returns the number of examples that the loaded profile makes of ``count``."""
    return max(1, count * settings().max_examples // _ALL)
