"""Numbers of atomic writes, and the producer ids under which their tasks stage record batches.

A write has a number of its own, and each attempt of a task in it another. Together they are the
producer id in the headers of what the attempt stages: so a staged record batch says by itself
which write it is of, and a retry of an append after a lost answer makes no second copy, as for any
idempotent producer::

    bit  63       20        0
         | write  | attempt |
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from spark_logbus.errors import InvalidRequestError

ATTEMPT_BITS: Final = 20
WRITE_BITS: Final = 63 - ATTEMPT_BITS
MAX_ATTEMPT: Final = (1 << ATTEMPT_BITS) - 1
MAX_WRITE: Final = (1 << WRITE_BITS) - 1

_RUN = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")


def check_write(write: int) -> None:
    """Raise InvalidRequestError unless it can be the number of a write."""
    if not 0 <= write <= MAX_WRITE:
        raise InvalidRequestError(f"A write's number is 0 to {MAX_WRITE}, got {write}.")


def stage_id(write: int, attempt: int) -> int:
    """The producer id of an attempt. InvalidRequestError for numbers that do not fit."""
    if not 0 <= write <= MAX_WRITE or not 0 <= attempt <= MAX_ATTEMPT:
        raise InvalidRequestError(
            f"A write has a number of at most {WRITE_BITS} bits, and its attempts of at most "
            f"{ATTEMPT_BITS}; got {write} and {attempt}."
        )
    return write << ATTEMPT_BITS | attempt


def write_of(producer_id: int) -> int:
    """The number of the write that a staged record batch is of."""
    return producer_id >> ATTEMPT_BITS


def attempts_text(attempts: Iterable[int]) -> str:
    """Numbers in their order, short where they follow one another: ``"5,7-9"``."""
    runs: list[list[int]] = []
    for number in attempts:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


class StageIds:
    """The producer ids of the attempts that count in a write, in the order of their tasks.

    Kept as ranges: a million attempts that follow one another take no more memory than one, and
    partitions that share a write share its value. Immutable.
    """

    __slots__ = ("_count", "_firsts", "_lasts", "_places", "write")

    def __init__(self, write: int, runs: Sequence[tuple[int, int]]) -> None:
        """``runs`` of attempts, first and last of each. InvalidRequestError for numbers that do
        not fit, and for an attempt that is there twice."""
        check_write(write)
        self.write = write
        before = -1
        rising = sorted(runs)
        for first, last in rising:
            if not 0 <= first <= last <= MAX_ATTEMPT:
                raise InvalidRequestError(
                    f"{first}-{last} is not a range of attempts: they are 0 to {MAX_ATTEMPT}."
                )
            if first <= before:
                raise InvalidRequestError(f"The attempt {first} of a write is named twice.")
            before = last
        places: dict[int, int] = {}  # by the first of each run: how many attempts come before it
        self._count = 0
        for first, last in runs:
            places[first] = self._count
            self._count += last - first + 1
        self._firsts = array("I", (first for first, _ in rising))
        self._lasts = array("I", (last for _, last in rising))
        self._places = array("I", (places[first] for first, _ in rising))

    @classmethod
    def of(cls, write: int, attempts: str) -> StageIds:
        """Parses what ``attempts_text`` wrote. Raises InvalidRequestError for anything else."""
        runs: list[tuple[int, int]] = []
        for run in attempts.split(",") if attempts else ():
            match = _RUN.fullmatch(run)
            if match is None:
                raise InvalidRequestError(
                    f"{run[:40]!r} is not the number of an attempt, or a range."
                )
            runs.append((int(match[1]), int(match[2] or match[1])))
        return cls(write, runs)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        by_place = sorted(range(len(self._places)), key=self._places.__getitem__)
        for at in by_place:
            for attempt in range(self._firsts[at], self._lasts[at] + 1):
                yield self.write << ATTEMPT_BITS | attempt

    def __contains__(self, producer_id: object) -> bool:
        return isinstance(producer_id, int) and self._place(producer_id) is not None

    def among(self, known: Collection[int]) -> list[int]:
        """Returns the ids of ``known`` that belong to the write and count, in their tasks' order.

        Takes as long as the smaller of the two, as a partition has few of a write's attempts.
        """
        if self._count <= len(known):
            return [producer_id for producer_id in self if producer_id in known]
        places = {producer_id: self._place(producer_id) for producer_id in list(known)}
        found = {each: place for each, place in places.items() if place is not None}
        return sorted(found, key=found.__getitem__)

    def _place(self, producer_id: int) -> int | None:
        if producer_id >> ATTEMPT_BITS != self.write:
            return None
        attempt = producer_id & MAX_ATTEMPT
        at = bisect_right(self._firsts, attempt) - 1
        if at < 0 or attempt > self._lasts[at]:
            return None
        return self._places[at] + attempt - self._firsts[at]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StageIds):
            return NotImplemented
        mine = (self.write, self._firsts, self._lasts, self._places)
        return mine == (other.write, other._firsts, other._lasts, other._places)

    def __hash__(self) -> int:
        return hash((self.write, self._count))
