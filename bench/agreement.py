"""Whether runs agree: the ratios of each, as far as their rounds lie apart. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

from bench.markdown import paragraph, table
from bench.result import Compared, Ratios, Spread

NEAR: Final = 0.1
"""How far medians may lie apart, as a share, to be told as near where ranges do not touch."""


class Agreement(NamedTuple):
    """What the runs found for one ratio."""

    of: Compared
    runs: Sequence[Spread]

    @property
    def has_ranges(self) -> bool:
        """Whether each run has rounds that lie apart; of a single round nothing can be said."""
        return all(one.lowest < one.highest for one in self.runs)

    @property
    def touches(self) -> bool:
        """Whether the ranges of all runs have a ratio in common."""
        return max(one.lowest for one in self.runs) <= min(one.highest for one in self.runs)

    @property
    def apart(self) -> float:
        """How much larger the largest of the medians is than the smallest, as a share of it."""
        medians = [one.median for one in self.runs]
        return max(medians) / min(medians) - 1


def agreements(runs: Sequence[Ratios]) -> list[Agreement]:
    """Of the ratios that several runs have, in their order."""
    found: dict[Compared, list[Spread]] = {}
    for run in runs:
        for of, ratio in run.items():
            found.setdefault(of, []).append(ratio)
    return [Agreement(of, spreads) for of, spreads in found.items() if len(spreads) > 1]


def told_of_runs(words: str, runs: Sequence[Ratios]) -> str:
    """A paragraph of Markdown that begins with ``words``: in how many ratios the runs of a table
    agree; empty without several."""
    found = agreements(runs)
    return paragraph(f"{words} {_counted(found)}.") if found else ""


def told_of_further(words: str, tables: Ratios, further: Ratios) -> str:
    """Markdown that begins with ``words``: in how many ratios a further run agrees with the rounds
    that tables are of, and a table of those where it is not near; empty without ratios of both."""
    found = agreements([tables, further])
    if not found:
        return ""
    far = sorted(_far(found), key=lambda one: -one.apart)
    text = paragraph(f"{words} {_counted(found)}{':' if far else '.'}")
    lines = [(str(one.of), *map(str, one.runs)) for one in far]
    return "\n\n".join(filter(None, (text, table(("ratio", "tables", "further run"), lines))))


def _counted(found: Sequence[Agreement]) -> str:
    apart = sorted(one.apart for one in found)
    most = max(found, key=lambda one: one.apart)
    text = (
        f"medians of {len(found)} ratios lie {statistics.median(apart):.0%} apart in the middle, "
        f"{_nine_tenths(apart):.0%} or less in nine of ten, {most.apart:.0%} at most ({most.of})"
    )
    ranged = [one for one in found if one.has_ranges]
    if not ranged:
        return text
    parted = [one for one in ranged if not one.touches]
    text += f"; ranges touch in {len(ranged) - len(parted)} of {len(ranged)}"
    if not parted:
        return text
    return (
        f"{text}; where they do not, medians lie up to {NEAR:.0%} apart in "
        f"{len(parted) - len(_far(parted))} and farther in {len(_far(parted))}"
    )


def _far(found: Sequence[Agreement]) -> list[Agreement]:
    return [one for one in found if one.has_ranges and not one.touches and one.apart > NEAR]


def _nine_tenths(ordered: Sequence[float]) -> float:
    """What nine of ten do not pass."""
    return ordered[max(0, -(-9 * len(ordered) // 10) - 1)]
