"""The outcomes of proposals, as the table in the module and in docs/atomic-writes.md has them."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from spark_logbus.coordination.writes.decisions import (
    MAX_ABORTED,
    MAX_ENDED_RUNS,
    NOTHING,
    Age,
    DecidedWrite,
    Outcome,
    Proposal,
    TopicRecords,
    WriterState,
    abort,
    age,
    check_proposal,
    decide,
    published,
)
from spark_logbus.errors import InvalidRequestError, NotAuthorizedError, WriteFencedError


def proposal(version: int, write: int, run: str = "a", *, settled: int | None = None) -> Proposal:
    topics = {"t": TopicRecords("id", {0: 5, 1: 7}), "u": TopicRecords("id", {0: 1})}
    return Proposal(DecidedWrite(version, write, "0-1", topics), run=run, settled=settled)


def after(*proposals: Proposal, state: WriterState = NOTHING) -> WriterState:
    """The state after these were decided, each published before the next."""
    for each in proposals:
        outcome = decide(state, each, now_us=1)
        assert outcome.state is not None
        state = whole(outcome.state)
    return state


def whole(state: WriterState) -> WriterState:
    """State of a writer whose last write is published."""
    assert state.last is not None
    found = published(state, state.last.write, {"t": [0, 1], "u": [0]})
    assert found is not None
    return found


def test_a_first_write_is_decided() -> None:
    outcome = decide(NOTHING, proposal(0, 10), now_us=5)
    assert outcome.state is not None
    assert outcome.state.last == proposal(0, 10).decision
    assert (outcome.state.run, outcome.state.changed_us) == ("a", 5)


def test_a_repeated_request_changes_nothing() -> None:
    decided = decide(NOTHING, proposal(0, 10), now_us=5).state
    assert decided is not None
    assert decide(decided, proposal(0, 10), now_us=6) == Outcome(repeated=decided.last)


@pytest.mark.parametrize("published_before", [False, True])
def test_a_repeated_request_that_says_something_else_is_refused(published_before: bool) -> None:
    """Brokers would publish what nobody decided otherwise."""
    state = decide(NOTHING, proposal(0, 10), now_us=5).state
    assert state is not None
    if published_before:
        state = published(state, 10, {"t": [0]})
        assert state is not None
    asked = proposal(0, 10)
    assert decide(state, asked, now_us=6).repeated == state.last
    decision, topics = asked.decision, asked.decision.topics
    for other in (
        msgspec.structs.replace(decision, version=1),
        msgspec.structs.replace(decision, attempts="2"),
        msgspec.structs.replace(decision, attempts=""),
        msgspec.structs.replace(decision, topics={**topics, "t": TopicRecords("id", {0: 5, 1: 8})}),
        msgspec.structs.replace(
            decision, topics={**topics, "t": TopicRecords("other", {0: 5, 1: 7})}
        ),
        msgspec.structs.replace(decision, topics={"t": topics["t"]}),
    ):
        with pytest.raises(InvalidRequestError, match="write 10 is decided as version 0"):
            decide(state, replace(asked, decision=other), now_us=6)


def test_no_more_brokers_promise_than_can_lead_a_part_of_the_write() -> None:
    asked = proposal(0, 10)
    check_proposal(replace(asked, promises=dict.fromkeys(range(3), "x")))
    with pytest.raises(InvalidRequestError, match="promises of 4 brokers"):
        check_proposal(replace(asked, promises=dict.fromkeys(range(4), "x")))


@pytest.mark.parametrize("version", [0, 4, 5])
def test_a_version_is_decided_once(version: int) -> None:
    state = after(proposal(5, 10))
    outcome = decide(state, proposal(version, 11), now_us=6)
    assert (outcome.state, outcome.already) == (None, True)
    assert outcome.standing == state.last


def test_a_version_waits_until_the_one_before_is_published() -> None:
    state = decide(NOTHING, proposal(1, 10), now_us=1).state
    assert state is not None
    outcome = decide(state, proposal(2, 11), now_us=2)
    assert (outcome.state, outcome.already) == (None, False)
    assert outcome.standing == proposal(1, 10).decision
    assert decide(state, proposal(2, 11, settled=9), now_us=2).state is None
    assert decide(state, proposal(2, 11, settled=10), now_us=2).state is not None
    assert decide(whole(state), proposal(2, 11), now_us=2).state is not None


def test_a_run_that_was_succeeded_decides_nothing() -> None:
    state = after(proposal(1, 10, "a"), proposal(2, 11, "b"), proposal(3, 12, "c"))
    for run in ("a", "b"):
        with pytest.raises(WriteFencedError, match="run c"):
            decide(state, proposal(4, 13, run), now_us=1)
        assert decide(state, proposal(3, 13, run), now_us=1).already
    assert after(proposal(4, 13, "c"), proposal(5, 14, "d"), state=state).ended_runs == (
        "a", "b", "c",
    )  # fmt: skip


def test_what_is_remembered_is_bounded() -> None:
    state = after(*(proposal(n, n, f"run {n}") for n in range(MAX_ENDED_RUNS + 5)))
    assert len(state.ended_runs) == MAX_ENDED_RUNS
    for write in range(1_000, 1_000 + MAX_ABORTED + 5):
        state = abort(state, proposal(500, write), now_us=1).state or state
    assert len(state.aborted) == MAX_ABORTED
    with pytest.raises(WriteFencedError):
        decide(state, proposal(500, 1_000 + MAX_ABORTED + 4), now_us=1)


def test_an_aborted_write_is_never_decided() -> None:
    state = abort(NOTHING, proposal(0, 10), now_us=3).state
    assert state is not None
    assert state.last is None
    with pytest.raises(WriteFencedError, match="aborted"):
        decide(state, proposal(0, 10), now_us=4)
    assert abort(state, proposal(0, 10), now_us=4) == Outcome()
    assert decide(state, proposal(0, 11), now_us=4).state is not None


def test_a_decided_write_is_not_aborted() -> None:
    state = after(proposal(1, 10))
    outcome = abort(state, proposal(1, 10), now_us=3)
    assert outcome.state is None
    assert outcome.standing == state.last


def test_published_partitions_are_taken_out_one_by_one() -> None:
    state = decide(NOTHING, proposal(1, 10), now_us=1).state
    assert state is not None
    assert published(state, 10, {"t": [3], "x": [0]}) is None
    assert published(state, 9, {"t": [0]}) is None
    state = published(state, 10, {"t": [0]})
    assert state is not None
    assert state.last is not None
    assert state.last.topics == {
        "t": TopicRecords("id", {1: 7}),
        "u": TopicRecords("id", {0: 1}),
    }
    assert state.unpublished
    state = published(state, 10, {"t": [1], "u": [0]})
    assert state is not None
    assert not state.unpublished
    assert published(state, 10, {"t": [1]}) is None


@pytest.mark.parametrize(
    ("changed_us", "old_us", "expected"),
    [
        (900, None, Age.KEPT),
        (901, 100, Age.KEPT),
        (2000, None, Age.KEPT),  # stamped by a clock that was ahead
        (800, None, Age.OLD),
        (0, None, Age.OLD),  # in 1970
        (0, 901, Age.KEPT),
        (0, 900, Age.FORGOTTEN),
        (0, 1001, Age.OLD),  # found by a clock that was ahead
    ],
)
def test_a_state_is_forgotten_when_it_has_been_old_for_long(
    changed_us: int, old_us: int | None, expected: Age
) -> None:
    state = msgspec.structs.replace(after(proposal(1, 10)), changed_us=changed_us, old_us=old_us)
    assert age(state, now_us=1000, keep_us=100 if changed_us != 900 else 101) is expected


def test_a_writer_that_writes_again_is_not_old() -> None:
    old = msgspec.structs.replace(after(proposal(1, 10)), old_us=5)
    for outcome in (decide(old, proposal(2, 11), now_us=6), abort(old, proposal(2, 11), now_us=6)):
        assert outcome.state is not None
        assert (outcome.state.changed_us, outcome.state.old_us) == (6, None)


def by(owner: str, version: int, write: int, *, for_others: bool = False) -> Proposal:
    return replace(proposal(version, write), owner=owner, for_others=for_others)


def test_a_writer_belongs_to_the_first_that_decides_or_aborts() -> None:
    decided, aborted = after(by("a", 1, 10)), abort(NOTHING, by("a", 1, 10), now_us=1).state
    assert aborted is not None
    for state in (decided, aborted):
        assert state.owner == "a"
        for change in (decide, abort):
            for write in (10, 11):  # hers, and one of their own
                with pytest.raises(NotAuthorizedError, match=r"belongs to a, .* and not to b"):
                    change(state, by("b", 2, write), now_us=1)
            assert change(state, by("", 2, 11), now_us=1).state is not None, "nobody was asked"
        new = decide(state, by("b", 2, 11, for_others=True), now_us=1).state
        assert new is not None
        assert new.owner == "a"


def test_who_cleans_up_for_others_owns_nothing() -> None:
    state = abort(NOTHING, by("admin", 1, 10, for_others=True), now_us=1).state
    assert state is not None
    assert state.owner == ""
    assert after(by("a", 1, 11), state=state).owner == "a"


def test_nodes_of_writers_without_owners_are_as_before() -> None:
    data = (
        b'{"last":{"version":1,"write":10,"attempts":"0-1"},"run":"a","changed_us":1,'
        b'"remembered":[]}'
    )
    state = msgspec.json.decode(data, type=WriterState)
    assert (state.owner, state.last and state.last.mark) == ("", None)
    assert after(by("a", 2, 11), state=state).owner == "a"
    unowned = msgspec.json.encode(after(proposal(1, 10)))
    assert b"owner" not in unowned
    assert b"mark" not in unowned
