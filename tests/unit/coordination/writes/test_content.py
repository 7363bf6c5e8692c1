"""What is taken for the write that was committed before, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from spark_logbus.coordination.payloads import encode
from spark_logbus.coordination.writes.content import (
    MAX_INPUTS_CHARACTERS,
    MAX_RECORDS,
    MAX_REMEMBERED,
    WriteContent,
    check_content,
)
from spark_logbus.coordination.writes.decisions import (
    NOTHING,
    DecidedWrite,
    Proposal,
    WriterState,
    decide,
)
from spark_logbus.coordination.writes.writers import _state
from spark_logbus.errors import InvalidRequestError, WriteMismatchError
from spark_logbus.zookeeper.nodes import Node

CONTENT = WriteContent(40, "topics", "partitions", "layout", "inputs")


def proposal(version: int, content: WriteContent | None, *, dropped: bool = False) -> Proposal:
    decision = DecidedWrite(version, 1000 + version, "0", {})
    inputs = "" if content is None else f"end {content.records}"
    return Proposal(decision, content=content, inputs=inputs, repetition_dropped=dropped)


def after(*versions: int, content: WriteContent | None = CONTENT) -> WriterState:
    state = NOTHING
    for version in versions:
        outcome = decide(state, proposal(version, content), now_us=1)
        assert outcome.state is not None
        state = outcome.state
    return state


def again(state: WriterState, content: WriteContent | None, *, version: int) -> bool:
    """Tells whether the version, proposed again as another attempt, is found to be the same
    write."""
    wanted = proposal(version, content)
    wanted = replace(wanted, decision=msgspec.structs.replace(wanted.decision, write=1))
    outcome = decide(state, wanted, now_us=2)
    assert outcome.state is None
    assert outcome.already
    return outcome.compared


@pytest.mark.parametrize("version", [3, 4, 5])
def test_the_same_write_is_recognised(version: int) -> None:
    state = after(3, 4, 5)
    assert again(state, CONTENT, version=version)
    assert again(state, replace(CONTENT, inputs=""), version=version)
    # There are more partitions now, so keys lie elsewhere.
    assert again(state, replace(CONTENT, layout="x", partitions="x"), version=version)


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (replace(CONTENT, records=340), "topics get other numbers"),
        (replace(CONTENT, topics="x"), "topics get other numbers"),
        (replace(CONTENT, partitions="x"), "partitions get other numbers"),
        (replace(CONTENT, inputs="x"), "other inputs"),
        (WriteContent(0), "topics get other numbers"),
    ],
)
def test_another_write_under_a_committed_version_is_refused(
    version: int, other: WriteContent, reason: str
) -> None:
    with pytest.raises(WriteMismatchError, match=reason) as refused:
        again(after(3, 4, 5), other, version=version)
    told = refused.value.message
    assert f"Version {version} was committed with 40 records" in told
    assert f"comes again with {other.records} records, of inputs up to end {other.records}" in told
    assert "is committed is 5, of inputs up to end 40." in told


def test_a_version_between_that_was_not_committed_comes_with_nothing_or_is_refused() -> None:
    state = after(3, 7)
    assert again(state, WriteContent(0), version=5)
    with pytest.raises(WriteMismatchError, match="nothing of it was committed"):
        again(state, CONTENT, version=5)


def test_a_version_older_than_remembered_is_refused() -> None:
    state = after(*range(MAX_REMEMBERED + 20))
    assert len(state.remembered) == MAX_REMEMBERED
    assert again(state, CONTENT, version=20)
    with pytest.raises(WriteMismatchError, match="remembered \\(from 20 on\\)"):
        again(state, CONTENT, version=19)


def test_what_an_earlier_release_decided_is_not_believed_without_a_word() -> None:
    old = after(3, 4, content=None)
    with pytest.raises(WriteMismatchError, match="remembered \\(none\\)"):
        again(old, CONTENT, version=4)
    # Its clients say nothing of what they write, and mirrors know by the number.
    assert not again(old, None, version=4)
    new = decide(old, proposal(5, CONTENT), now_us=3).state
    assert new is not None
    assert again(new, CONTENT, version=5)
    with pytest.raises(WriteMismatchError, match="remembered \\(from 5 on\\)"):
        again(new, CONTENT, version=4)


def test_a_decision_of_an_earlier_client_leaves_no_hole_in_the_memory() -> None:
    state = after(3, 4)
    state = decide(state, proposal(5, None), now_us=1).state or state
    state = decide(state, proposal(6, CONTENT), now_us=1).state or state
    with pytest.raises(WriteMismatchError, match="from 6 on"):
        again(state, CONTENT, version=5)


def test_a_repetition_is_dropped_where_the_user_says_so() -> None:
    other = proposal(4, replace(CONTENT, records=1), dropped=True)
    outcome = decide(after(3, 4, 5), replace(other, decision=DecidedWrite(4, 1, "0", {})), now_us=1)
    assert (outcome.already, outcome.compared, outcome.state) == (True, False, None)


def test_what_is_remembered_is_kept_in_the_node_and_stays_small() -> None:
    digest = "0123456789abcdef"
    content = WriteContent(2**40, digest, digest, digest, digest)
    state = after(*range(1, MAX_REMEMBERED * 3), content=content)
    data = encode(state)
    assert len(data) < 120 * MAX_REMEMBERED
    assert _state(Node(data, 0, 0, (0, 0)), "/w") == state


@pytest.mark.parametrize(
    ("content", "inputs"),
    [
        (WriteContent(-1), ""),
        (WriteContent(MAX_RECORDS + 1), ""),
        (WriteContent(1, topics="x" * 33), ""),
        (WriteContent(1, partitions="x" * 33), ""),
        (WriteContent(1, layout="x" * 33), ""),
        (WriteContent(1, inputs="x" * 33), ""),
        (WriteContent(1), "x" * (MAX_INPUTS_CHARACTERS + 1)),
    ],
)
def test_content_that_would_fill_the_node_is_refused(content: WriteContent, inputs: str) -> None:
    with pytest.raises(InvalidRequestError):
        check_content(content, inputs)


def test_the_state_of_an_earlier_release_is_read() -> None:
    old = (
        b'{"last":{"version":17,"write":52,"attempts":"40-43","topics":{}},"run":"r",'
        b'"changed_us":1751000000000000}'
    )
    state = _state(Node(old, 0, 0, (0, 0)), "/w")
    assert (state.remembered, state.inputs) == ((), "")
    assert decide(state, proposal(18, CONTENT), now_us=1).state is not None
    with pytest.raises(WriteMismatchError, match="none"):
        again(state, CONTENT, version=17)
