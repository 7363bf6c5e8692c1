"""Whether runs agree: the ratios of each, as far as their rounds lie apart. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from bench.markdown import paragraph, table
from bench.result import Compared, Ratios, Spread


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


def told(found: Sequence[Agreement]) -> str:
    """Markdown: how many agree, how far medians lie apart, and a table of those whose ranges do
    not touch; empty without any."""
    if not found:
        return ""
    apart = sorted(one.apart for one in found)
    text = (
        f"**Do runs agree?** {len(found)} ratios were measured in several runs. Their medians lie "
        f"{statistics.median(apart):.0%} apart in the middle, {_nine_tenths(apart):.0%} or less in "
        f"nine of ten, {apart[-1]:.0%} at most ({max(found, key=lambda one: one.apart).of})."
    )
    ranged = [one for one in found if one.has_ranges]
    parted = [one for one in ranged if not one.touches]
    if ranged:
        text += f" Ranges touch in {len(ranged) - len(parted)} of {len(ranged)}"
        text += "; they do not in:" if parted else "."
    most = max((len(one.runs) for one in parted), default=0)
    headings = ("ratio", *(_nth(number) for number in range(1, most + 1)))
    lines = [
        (str(one.of), *map(str, one.runs), *[""] * (most - len(one.runs)))
        for one in sorted(parted, key=lambda one: -one.apart)
    ]
    return "\n\n".join(part for part in (paragraph(text), table(headings, lines)) if part)


def _nth(number: int) -> str:
    few = {1: "first", 2: "second", 3: "third"}
    return f"{few.get(number, f'{number}th')} run"


def _nine_tenths(ordered: Sequence[float]) -> float:
    """What nine of ten do not pass."""
    return ordered[max(0, -(-9 * len(ordered) // 10) - 1)]
