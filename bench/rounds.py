"""Rounds: each contender in turn, so that whatever the machine does meanwhile strikes all alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar


class Named(Protocol):
    @property
    def name(self) -> str: ...


_Named = TypeVar("_Named", bound=Named)
_Measured = TypeVar("_Measured")


def in_turn(
    contenders: Sequence[_Named],
    measure: Callable[[_Named, bool], _Measured],
    *,
    rounds: int,
) -> dict[str, list[_Measured]]:
    """What ``measure`` found for each contender in each round, after one that does not count (it
    is told), every second round in reverse order."""
    took: dict[str, list[_Measured]] = {contender.name: [] for contender in contenders}
    for number in range(rounds + 1):
        for contender in contenders if number % 2 else reversed(contenders):
            found = measure(contender, number > 0)
            if number:
                took[contender.name].append(found)
    return took
