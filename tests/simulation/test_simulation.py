"""Simulated schedules of three brokers: what was promised holds, and what breaks a rule is found.

A schedule that has failed is shown step by step by ``python -m tests.simulation SEED``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest import mock

import pytest

from spark_logbus.broker.replica.applying import FollowedLog
from spark_logbus.broker.replica.in_sync import InSync
from spark_logbus.broker.replica.members import Change, Members
from spark_logbus.protocol import FollowedPartition
from tests.simulation.world import World

_SEARCHED: Final = 300  # schedules in which a broken rule is to be found


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logger = logging.getLogger("spark_logbus")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)


def test_some_schedules_hold() -> None:
    for seed in range(20):
        World(seed).run()


@pytest.mark.long
def test_many_schedules_hold() -> None:
    for seed in range(1_000, 1_300):
        World(seed).run()


@pytest.mark.slow
@pytest.mark.timeout(24 * 3_600)
def test_a_hundred_thousand_schedules_hold() -> None:
    for seed in range(100_000, 200_000):
        World(seed).run()


def test_a_seed_is_a_schedule() -> None:
    first, again = World(7), World(7)
    first.run()
    again.run()
    assert first.trace == again.trace
    assert first.witness.seen == again.witness.seen


# -- broken rules ---------------------------------------------------------------------------


def _counts_late(self: Members, change: Change) -> Change:
    self._leaving = change.remove
    return change


def _tells_written(self: FollowedLog, max_bytes: int) -> FollowedPartition:
    told = _REQUEST(self, max_bytes)
    told.flushed_end = told.safe_end = told.offset
    return told


_REQUEST: Final = FollowedLog.request
_RULES: Final = "spark_logbus.coordination.cluster.leader_rules"
_MEMBERS: Final = "spark_logbus.broker.replica.members"


def _nothing(*_: object, **__: object) -> None:
    pass


#: Rules that are broken, and the first seed that finds it as the code is now.
BROKEN: Final[dict[str, tuple[int, dict[Any, Callable[..., Any]]]]] = {
    "a joiner counts only when its write is heard": (106, {(Members, "begin"): _counts_late}),
    "in-sync names brokers and no log ids": (
        5, {f"{_RULES}._flaw": _nothing, f"{_MEMBERS}._is_of": lambda *_: True},
    ),
    "a follower tells what it wrote": (
        1, {(FollowedLog, "request"): _tells_written, (FollowedLog, "flush"): _nothing},
    ),
    "a follower never cuts back": (29, {(FollowedLog, "_cut_to"): _nothing}),
    "the leader promises for itself alone": (
        126,
        {
            (InSync, "wait_until_staged"): _nothing,
            (InSync, "when_staged"): lambda _self, _led, _write, callback: callback(None),
        },
    ),
}  # fmt: skip


@contextmanager
def broken(patches: dict[Any, Callable[..., Any]]) -> Iterator[None]:
    with ExitStack() as stack:
        for place, replacement in patches.items():
            stack.enter_context(
                mock.patch(place, replacement)
                if isinstance(place, str)
                else mock.patch.object(place[0], place[1], replacement)
            )
        yield


def found(seeds: Collection[int]) -> int | None:
    """Returns the first schedule that fails."""
    for seed in seeds:
        try:
            World(seed).run()
        except BaseException:  # noqa: BLE001 - a disk whose power is cut raises one, too
            return seed
    return None


@pytest.mark.long
@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_found_by_a_schedule(rule: str) -> None:
    first, patches = BROKEN[rule]
    with broken(patches):
        assert found(range(first, first + _SEARCHED)) is not None
