"""Sentences that state what ratios found, for the titles of charts. Pure.

A ratio is logbus's rate to the other's. Only what the rounds tell apart is called a multiple: where
some are above 1 and some below, it is the same as far as they tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from bench.result import Spread

_NAMED: Final = 3  # those that are named one by one; of more, the nearest and the farthest

_UNTOLD: Final = ", as far as the rounds tell"

Ratios = Mapping[str, Spread]


class Told(NamedTuple):
    """Ratios, the lowest first, by what the rounds tell."""

    behind: Ratios
    same: Ratios
    ahead: Ratios

    @classmethod
    def apart(cls, ratios: Ratios) -> Told:
        ordered = sorted(ratios.items(), key=lambda each: each[1].median)
        return cls(
            {name: one for name, one in ordered if one.highest < 1},
            {name: one for name, one in ordered if one.lowest <= 1 <= one.highest},
            {name: one for name, one in ordered if one.lowest > 1},
        )


def finding(subject: str, ratios: Ratios, *, measure: str = "as fast as") -> str:
    """``subject`` beside several others; empty without ratios."""
    behind, same, ahead = Told.apart(ratios)
    parts = [
        _beside(behind, measure),
        f"{measure} {_joined([plain(name) for name in same])}{_UNTOLD}" if same else "",
        _beside(ahead, measure),
    ]
    said = "; ".join(part for part in parts if part)
    return f"{subject} {said}" if said else ""


def _beside(ratios: Ratios, measure: str) -> str:
    if len(ratios) <= _NAMED:
        return _joined(
            [f"{times(one.median)} times {measure} {plain(name)}" for name, one in ratios.items()]
        )
    return f"{_range(ratios, of=len(ratios))} {measure} {len(ratios)} others"


def finding_over(subject: str, other: str, ratios: Ratios, *, measure: str = "as fast as") -> str:
    """``subject`` beside one other in several cases; empty without ratios."""
    behind, same, ahead = Told.apart(ratios)
    parts = []
    for found in (ahead, behind):
        if found:
            some = 1 < len(found) < len(ratios)
            many = f" in {len(found)} of {len(ratios)} cases" if some else ""
            parts.append(f"{_range(found, of=len(ratios))} {measure} {plain(other)}{many}")
    if same:
        beside = f" {plain(other)}" if not parts else ""
        many = "" if len(same) == len(ratios) else f" in {len(same)} of {len(ratios)}"
        about = measure if beside else measure.removesuffix(" as")
        parts.append(f"{about}{beside}{many}{_UNTOLD}")
    return f"{subject} {'; '.join(parts)}" if parts else ""


def _range(ratios: Ratios, *, of: int) -> str:
    """The lowest and the highest, each with its name; without if they are shown alike, or if there
    is just one ``of`` all."""
    (first, lowest), *others = ratios.items()
    if not others:
        return f"{times(lowest.median)} times" + (f" ({first})" if of > 1 else "")
    last, highest = others[-1]
    if times(lowest.median) == times(highest.median):
        return f"{times(lowest.median)} times"
    return f"{times(lowest.median)} ({first}) to {times(highest.median)} times ({last})"


def plain(name: str) -> str:
    """A contender's name without a comma, which would part it in a sentence."""
    whose, _, which = name.partition(", ")
    return f"{whose} ({which})" if which else whose


def times(ratio: float) -> str:
    """Two digits that count, or three about 1."""
    if ratio < 0.1:
        return f"{ratio:.2g}"
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}" if ratio >= 1.05 else f"{ratio:.2f}"


def _joined(parts: Sequence[str]) -> str:
    *others, last = parts or [""]
    return f"{', '.join(others)} and {last}" if others else last
