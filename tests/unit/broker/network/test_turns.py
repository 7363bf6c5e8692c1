from __future__ import annotations

from spark_logbus.broker.network.strand import Strand


class Poller:
    """Remembers how it was armed."""

    def __init__(self) -> None:
        self.armed: list[tuple[bool, bool]] = []

    def __call__(self, *, reads: bool, writes: bool) -> None:
        self.armed.append((reads, writes))


def idle() -> tuple[Strand, Poller]:
    poller = Poller()
    turns = Strand(poller)
    turns.give_back(reads=True, writes=False)
    poller.armed.clear()
    return turns, poller


def test_only_one_has_the_turn() -> None:
    turns, _ = idle()
    assert turns.take()
    assert not turns.take()
    turns.give_back(reads=True, writes=False)
    assert turns.take()


def test_it_is_born_taken() -> None:
    turns = Strand(Poller())
    assert turns.taken
    assert not turns.take()


def test_giving_back_arms_for_what_is_wanted() -> None:
    turns, poller = idle()
    turns.take()
    turns.give_back(reads=False, writes=True)
    assert poller.armed == [(False, True)]


def test_a_call_between_turns_arms() -> None:
    turns, poller = idle()
    turns.call()
    assert poller.armed == [(True, True)]


def test_a_call_during_a_turn_is_kept_for_its_end() -> None:
    turns, poller = idle()
    turns.take()
    turns.call()
    assert poller.armed == []
    turns.give_back(reads=False, writes=False)
    assert poller.armed == [(True, True)]
    turns.take()
    turns.give_back(reads=True, writes=False)
    assert poller.armed[-1] == (True, False), "a call counts once"


def test_who_comes_in_vain_counts_as_a_call() -> None:
    turns, poller = idle()
    turns.take()
    turns.take()
    turns.give_back(reads=False, writes=False)
    assert poller.armed == [(True, True)]


def test_after_the_end_nothing_touches_the_poller() -> None:
    turns, poller = idle()
    turns.take()
    turns.end()
    turns.call()
    assert not turns.take()
    assert not turns.taken
    assert poller.armed == []
