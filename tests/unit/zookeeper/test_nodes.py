"""Replies that come together, and writes that are remembered because their replies were lost."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler

from spark_logbus.zookeeper.nodes import ConflictError, LostReplies, _Gathered
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


class Waits:
    """A reply of kazoo's, and the seconds that were waited for it."""

    def __init__(self) -> None:
        self.reply = SequentialThreadingHandler().async_result()
        self.waited = 0.0

    def wait(self, timeout: float) -> bool:
        self.waited += timeout
        return bool(self.reply.ready())

    @property
    def exception(self) -> Exception | None:
        failure: Exception | None = self.reply.exception
        return failure

    def get(self, block: bool = True, timeout: float = 0) -> Any:
        self.waited += timeout if block and not self.reply.ready() else 0
        return self.reply.get(block=False)

    def get_nowait(self) -> Any:
        return self.get(block=False)


def test_replies_that_do_not_come_are_waited_for_once() -> None:
    replies = [Waits() for _ in range(3)]
    with pytest.raises(KazooTimeoutError):
        _Gathered(replies).get(5.0)
    assert sum(each.waited for each in replies) == 5.0
    replies[0].reply.set("a")
    replies[1].reply.set_exception(NoNodeError())
    replies[2].reply.set("c")
    assert _Gathered(replies).get(5.0) == ["a", None, "c"]
