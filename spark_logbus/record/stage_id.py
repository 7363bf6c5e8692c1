"""Numbers of atomic writes, and the producer ids under which their tasks stage record batches.

A write has a number of its own, and each attempt of a task in it another. Together they are the
producer id in the headers of what the attempt stages: so a staged record batch says by itself
which write it is of, and a retry of an append after a lost answer makes no second copy, as for any
idempotent producer::

    bit  63       20        0
         | write  | attempt |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from spark_logbus.errors import InvalidRequestError

ATTEMPT_BITS: Final = 20
WRITE_BITS: Final = 63 - ATTEMPT_BITS
MAX_ATTEMPT: Final = (1 << ATTEMPT_BITS) - 1
MAX_WRITE: Final = (1 << WRITE_BITS) - 1


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


def parse_attempts(text: str) -> tuple[int, ...]:
    """The numbers that ``attempts_text`` wrote. InvalidRequestError for anything else."""
    numbers: list[int] = []
    for run in text.split(",") if text else ():
        first, _, last = run.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            raise InvalidRequestError(f"{run[:40]!r} is not the number of an attempt, or a range.")
        begin, end = int(first), int(last or first)
        if not begin <= end <= MAX_ATTEMPT:
            raise InvalidRequestError(f"{run[:40]!r} is not a range of attempts.")
        numbers.extend(range(begin, end + 1))
        if len(numbers) > MAX_ATTEMPT:
            raise InvalidRequestError(f"A write has at most {MAX_ATTEMPT} tasks.")
    return tuple(numbers)
