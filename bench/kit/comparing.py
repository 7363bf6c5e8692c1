"""Compares the contenders of raw results: for each row and metric, logbus beside each other. Pure.

A ratio above 1 says that logbus is ahead, whatever the metric.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from bench.kit.result import LOGBUS, Metrics, Rounds, Spread, median, spread


class Compared(NamedTuple):
    """Names what a ratio is of."""

    row: str
    what: str
    own: str
    beside: str


class Found(NamedTuple):
    """Result of one comparison."""

    ratio: Spread
    """Ratios of the rounds that both were in."""
    own: float
    """Median of all rounds of ``own``."""
    beside: float
    """Median of all rounds of ``beside``."""


Comparisons = Mapping[Compared, Found]


def unchanged(metrics: Metrics) -> Metrics:
    """Returns the metrics of a round as they were measured."""
    return metrics


@dataclass(frozen=True)
class Comparing:
    """Describes how the raw results of one program are compared."""

    metrics: Mapping[str, str]
    """Names of metrics, and how tables call them; nothing where the row says it."""
    own: str = LOGBUS
    """Pattern of the contenders that are logbus's ways."""
    rates: Collection[str] = ()
    """Metrics of which more is better; of all others less is."""
    goals: Mapping[Compared, float] = field(default_factory=dict)
    derived: Callable[[Metrics], Metrics] = unchanged
    """Makes the compared metrics of those that were measured in a round."""

    def of(self, raw: Mapping[str, Rounds]) -> dict[Compared, Found]:
        """Returns all comparisons of all rows, in the order of the results."""
        found = {}
        for name, measured in raw.items():
            row, _, part = name.partition(", ")
            rounds = {who: [*map(self.derived, each)] for who, each in measured.items()}
            for metric, called in self.metrics.items():
                for own, other in self.pairs(rounds):
                    one = self._found(rounds[own], rounds[other], metric)
                    if one is not None:
                        what = ", ".join(filter(None, (part, called)))
                        found[Compared(row, what, own, other)] = one
        return found

    def pairs(self, contenders: Collection[str]) -> list[tuple[str, str]]:
        """Returns each of logbus's ways with each other contender."""
        own = [name for name in contenders if re.fullmatch(self.own, name)]
        return [(each, other) for each in own for other in contenders if other not in own]

    def _found(
        self, own: Sequence[Metrics], beside: Sequence[Metrics], metric: str
    ) -> Found | None:
        ratios = self.ratios(own, beside, metric)
        medians = median(own, metric), median(beside, metric)
        if not ratios or medians[0] is None or medians[1] is None:
            return None
        return Found(spread(ratios), medians[0], medians[1])

    def ratios(self, own: Sequence[Metrics], beside: Sequence[Metrics], metric: str) -> list[float]:
        """Returns the ratio of each round that both contenders were in."""
        pairs = [
            (one[metric], other[metric])
            for one, other in zip(own, beside, strict=True)
            if metric in one and metric in other
        ]
        if metric in self.rates:
            pairs = [(other, one) for one, other in pairs]
        return [other / one for one, other in pairs if one and other]


Known = Mapping[str, Comparisons]
"""Comparisons by program."""

_ANY: Final = ".*"


class Ask(NamedTuple):
    """Chooses comparisons of a program by patterns of names."""

    program: str
    row: str = _ANY
    what: str = _ANY
    own: str = LOGBUS
    beside: str = _ANY

    def of(self, known: Known) -> dict[Compared, Found]:
        """Returns the comparisons whose names match all patterns."""
        return {
            compared: found
            for compared, found in known.get(self.program, {}).items()
            if all(map(re.fullmatch, self[1:], compared))
        }
