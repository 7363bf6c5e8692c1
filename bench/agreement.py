"""Whether results agree that were measured more than once: their ratios, as far as the rounds of
each lie apart. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Final, NamedTuple

from bench.markdown import paragraph, table
from bench.result import Compared, Ratios, Spread

NEAR: Final = 0.1
"""How far medians may lie apart, as a share, to be told as near where ranges do not touch."""


class Agreement(NamedTuple):
    """What was found for one ratio, by who found it."""

    of: Compared
    found: Mapping[str, Spread]

    @property
    def has_ranges(self) -> bool:
        """Whether each has rounds that lie apart; of a single round nothing can be said."""
        return all(one.lowest < one.highest for one in self.found.values())

    @property
    def touches(self) -> bool:
        """Whether all ranges have a ratio in common."""
        found = self.found.values()
        return max(one.lowest for one in found) <= min(one.highest for one in found)

    @property
    def chance(self) -> float | None:
        """How probable it is that two ranges touch where nothing differs: then all orders of their
        rounds are as likely, and in two kinds of them all of one come first. None for more ranges,
        and where it is not known how many rounds there are."""
        rounds = [one.rounds for one in self.found.values()]
        if len(rounds) != 2 or not all(rounds):
            return None
        return 1 - 2 / math.comb(sum(rounds), rounds[0])

    @property
    def same_ahead(self) -> bool:
        """Whether all medians tell the same one to be ahead."""
        medians = [one.median for one in self.found.values()]
        return min(medians) >= 1 or max(medians) <= 1

    @property
    def apart(self) -> float:
        """How much larger the largest of the medians is than the smallest, as a share of it."""
        medians = [one.median for one in self.found.values()]
        return max(medians) / min(medians) - 1


def agreements(by_name: Mapping[str, Ratios]) -> list[Agreement]:
    """Of the ratios that more than one found, in their order."""
    found: dict[Compared, dict[str, Spread]] = {}
    for name, ratios in by_name.items():
        for of, ratio in ratios.items():
            found.setdefault(of, {})[name] = ratio
    return [Agreement(of, spreads) for of, spreads in found.items() if len(spreads) > 1]


def told_within(words: str, groups: Iterable[Sequence[Ratios]]) -> str:
    """A paragraph of Markdown that begins with ``words``: in how many ratios any two runs of a
    group agree, for all groups together; empty where none has several."""
    found = _within(groups)
    return paragraph(f"{words} {_counted(found)}.") if found else ""


def told_touching(words: str, groups: Iterable[Sequence[Ratios]]) -> str:
    """A paragraph of Markdown that begins with ``words``: in how many ratios the ranges of any two
    of a group touch, for all groups together; empty where none has several that have ranges."""
    ranged = [one for one in _within(groups) if one.has_ranges]
    return paragraph(f"{words} {_touching(ranged)}.") if ranged else ""


def _within(groups: Iterable[Sequence[Ratios]]) -> list[Agreement]:
    return [
        agreement
        for runs in groups
        for one, other in combinations(runs, 2)
        for agreement in agreements({"one": one, "other": other})
    ]


def _touching(ranged: Sequence[Agreement]) -> str:
    text = f"ranges touch in {sum(one.touches for one in ranged)} of {len(ranged)}"
    chances = [one.chance for one in ranged if one.chance is not None]
    if len(chances) < len(ranged):
        return text
    return f"{text}, and would in {sum(chances):.0f} if nothing but chance parted them"


def told_between(words: str, by_name: Mapping[str, Ratios]) -> str:
    """Markdown that begins with ``words``: in how many ratios all agree, and a table of those where
    they are not near each other; empty without ratios that more than one found."""
    found = agreements(by_name)
    if not found:
        return ""
    far = sorted(_far(found), key=lambda one: -one.apart)
    text = paragraph(f"{words} {_counted(found)}{':' if far else '.'}")
    lines = [(str(one.of), *(str(one.found.get(name, "")) for name in by_name)) for one in far]
    return "\n\n".join(filter(None, (text, table(("ratio", *by_name), lines))))


def _counted(found: Sequence[Agreement]) -> str:
    text = _medians(found)
    ranged = [one for one in found if one.has_ranges]
    if not ranged:
        return text
    parted = [one for one in ranged if not one.touches]
    text += f"; {_touching(ranged)}"
    if not parted:
        return text
    return (
        f"{text}; where they do not, medians lie up to {NEAR:.0%} apart in "
        f"{len(parted) - len(_far(parted))} and farther in {len(_far(parted))}"
    )


def _medians(found: Sequence[Agreement]) -> str:
    apart = sorted(one.apart for one in found)
    most = max(found, key=lambda one: one.apart)
    if len(found) == 1:
        ahead = "the same one" if most.same_ahead else "another one"
        return f"medians of one ratio lie {most.apart:.0%} apart ({most.of}); {ahead} is ahead"
    return (
        f"medians of {len(found)} ratios lie {statistics.median(apart):.0%} apart in the middle, "
        f"{_nine_tenths(apart):.0%} or less in nine of ten, {most.apart:.0%} at most ({most.of}); "
        f"the same one is ahead in {sum(one.same_ahead for one in found)} of them"
    )


def _far(found: Sequence[Agreement]) -> list[Agreement]:
    return [one for one in found if one.has_ranges and not one.touches and one.apart > NEAR]


def _nine_tenths(ordered: Sequence[float]) -> float:
    """What nine of ten do not pass."""
    return ordered[max(0, -(-9 * len(ordered) // 10) - 1)]
