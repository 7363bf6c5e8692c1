from __future__ import annotations

from spark_logbus.network.strand import Strand


class Poller:
    """Remembers how it was armed."""

    def __init__(self) -> None:
        self.armed: list[tuple[bool, bool]] = []

    def __call__(self, *, reads: bool, writes: bool) -> None:
        self.armed.append((reads, writes))


def idle() -> tuple[Strand, Poller]:
    poller = Poller()
    strand = Strand(poller)
    strand.give_back(reads=True, writes=False)
    poller.armed.clear()
    return strand, poller


def test_only_one_has_the_turn() -> None:
    strand, _ = idle()
    assert strand.take()
    assert not strand.take()
    strand.give_back(reads=True, writes=False)
    assert strand.take()


def test_it_is_born_taken() -> None:
    strand = Strand(Poller())
    assert strand.taken
    assert not strand.take()


def test_giving_back_arms_for_what_is_wanted() -> None:
    strand, poller = idle()
    strand.take()
    strand.give_back(reads=False, writes=True)
    assert poller.armed == [(False, True)]


def test_a_call_between_turns_arms() -> None:
    strand, poller = idle()
    strand.call()
    assert poller.armed == [(True, True)]


def test_a_call_during_a_turn_is_kept_for_its_end() -> None:
    strand, poller = idle()
    strand.take()
    strand.call()
    assert poller.armed == []
    strand.give_back(reads=False, writes=False)
    assert poller.armed == [(True, True)]
    strand.take()
    strand.give_back(reads=True, writes=False)
    assert poller.armed[-1] == (True, False), "a call counts once"


def test_who_comes_in_vain_counts_as_a_call() -> None:
    strand, poller = idle()
    strand.take()
    strand.take()
    strand.give_back(reads=False, writes=False)
    assert poller.armed == [(True, True)]


def test_after_the_end_nothing_touches_the_poller() -> None:
    strand, poller = idle()
    strand.take()
    strand.end()
    strand.call()
    assert not strand.take()
    assert not strand.taken
    assert poller.armed == []
