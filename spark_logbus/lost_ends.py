"""Offset at which a partition goes on when the end of its log is lost.

What is known of the end of a log is a lower bound: more may have been appended, acknowledged and
read before it was lost, for seconds as a rule and for as long as ZooKeeper was away at worst. An
offset that was given must never stand for another record. So the log goes on at a round number that
lies further on than records can have come: at a million a second, eleven days.
"""

from __future__ import annotations

from typing import Final

STEP: Final = 10**12


def go_on_at(known_end: int) -> int:
    """A round offset at least ``STEP`` after ``known_end``."""
    return (-(-known_end // STEP) + 1) * STEP
