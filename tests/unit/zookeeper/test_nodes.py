"""The writes that an operation remembers because their replies were lost."""

from __future__ import annotations

import contextlib

import pytest

from spark_logbus.zookeeper.nodes import ConflictError, LostReplies
from spark_logbus.zookeeper.session import ReplyLostError


def attempt(lost: LostReplies[str], write: str, failure: Exception | None = None) -> None:
    with contextlib.suppress(ConflictError, ReplyLostError), lost.noting(write):
        if failure is not None:
            raise failure


@pytest.mark.parametrize(
    ("failure", "noted"),
    [(ReplyLostError("?"), ["a"]), (ConflictError("no"), []), (None, [])],
)
def test_a_write_stays_noted_if_its_reply_was_lost(
    failure: Exception | None, noted: list[str]
) -> None:
    lost = LostReplies[str]()
    attempt(lost, "a", failure)
    assert lost == noted


def test_a_conflict_says_nothing_of_an_earlier_attempt_of_the_same() -> None:
    """A server that lags behind shows the state before a write that was done."""
    lost = LostReplies[str]()
    attempt(lost, "a", ReplyLostError("?"))
    attempt(lost, "a", ConflictError("it is there"))
    assert lost == ["a"]
