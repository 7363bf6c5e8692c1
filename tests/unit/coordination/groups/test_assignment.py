from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_logbus.coordination.groups.assignment import Assignor, assign
from spark_logbus.model import TopicPartition

MEMBERS = "abcdef"
TOPICS = "xyz"

subscriptions = st.dictionaries(
    st.sampled_from(MEMBERS), st.frozensets(st.sampled_from(TOPICS)), max_size=6
)
counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 12).map(range))
previous_assignments = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 13)),
    st.sampled_from(MEMBERS),
)


def shares(assigned: dict[TopicPartition, str], topic: str = "x") -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic_partition, member in sorted(assigned.items()):
        if topic_partition.topic == topic:
            found.setdefault(member, []).append(topic_partition.partition)
    return found


@pytest.mark.parametrize(
    ("members", "partitions", "expected"),
    [
        ("ab", 4, {"a": [0, 1], "b": [2, 3]}),
        ("abc", 8, {"a": [0, 1, 2], "b": [3, 4, 5], "c": [6, 7]}),
        ("abc", 2, {"a": [0], "b": [1]}),
        ("a", 3, {"a": [0, 1, 2]}),
        ("", 3, {}),
    ],
)
def test_range(members: str, partitions: int, expected: dict[str, list[int]]) -> None:
    wanted = {member: ["x"] for member in members}
    assert shares(assign(Assignor.RANGE, wanted, {"x": range(partitions)})) == expected


def test_range_brings_the_same_numbers_of_topics_together() -> None:
    assigned = assign(
        Assignor.RANGE, {"a": "xy", "b": "xy", "c": "y"}, {"x": range(4), "y": range(4)}
    )
    assert shares(assigned, "x") == {"a": [0, 1], "b": [2, 3]}
    assert shares(assigned, "y") == {"a": [0, 1], "b": [2], "c": [3]}


def test_sticky_moves_no_more_than_it_must() -> None:
    partitions = {"x": range(8)}
    two = assign(Assignor.STICKY, {"a": "x", "b": "x"}, partitions)
    assert shares(two) == {"a": [0, 2, 4, 6], "b": [1, 3, 5, 7]}
    three = assign(Assignor.STICKY, dict.fromkeys("abc", "x"), partitions, previous=two)
    moved = [each for each in two if three[each] != two[each]]
    assert len(moved) == 2
    assert {three[each] for each in moved} == {"c"}
    one_left = assign(Assignor.STICKY, dict.fromkeys("bc", "x"), partitions, previous=three)
    moved = [each for each in three if one_left[each] != three[each]]
    assert {three[each] for each in moved} == {"a"}
    assert Counter(one_left.values()) == {"b": 4, "c": 4}


def test_sticky_keeps_free_whom_only_one_topic_suits() -> None:
    assigned = assign(Assignor.STICKY, {"a": "xy", "b": "y"}, {"x": range(3), "y": range(3)})
    assert shares(assigned, "x") == {"a": [0, 1, 2]}
    assert shares(assigned, "y") == {"b": [0, 1, 2]}


@pytest.mark.parametrize("assignor", Assignor)
@given(members=subscriptions, partitions=counts, previous=previous_assignments)
def test_each_partition_is_given_once_and_evenly(
    assignor: Assignor,
    members: dict[str, frozenset[str]],
    partitions: dict[str, range],
    previous: dict[TopicPartition, str],
) -> None:
    assigned = assign(assignor, members, partitions, previous=previous)
    wanted = {topic for topics in members.values() for topic in topics}
    assert assigned.keys() == {
        TopicPartition(topic, number)
        for topic, numbers in partitions.items()
        if topic in wanted
        for number in numbers
    }
    assert all(at.topic in members[member] for at, member in assigned.items())
    load = Counter(assigned.values())
    if assignor is Assignor.STICKY:
        for at, member in assigned.items():
            others = [load[other] for other, topics in members.items() if at.topic in topics]
            assert load[member] <= min(others) + 1, "no move of one makes it more even"
    else:
        for topic, numbers in partitions.items():
            sizes = [
                len(shares(assigned, topic).get(m, [])) for m in members if topic in members[m]
            ]
            assert not sizes or max(sizes) - min(sizes) <= 1
            assert sum(sizes) == (len(numbers) if sizes else 0)
    assert assign(assignor, members, partitions, previous=assigned) == assigned
    mixed = assign(
        assignor,
        dict(reversed(members.items())),
        {topic: reversed(numbers) for topic, numbers in reversed(partitions.items())},
        previous=dict(reversed(previous.items())),
    )
    assert mixed == assigned


@given(members=subscriptions, partitions=counts, leaver=st.sampled_from(MEMBERS))
def test_sticky_moves_only_what_a_leaver_had_among_equals(
    members: dict[str, frozenset[str]], partitions: dict[str, range], leaver: str
) -> None:
    equals = dict.fromkeys(members, TOPICS)
    before = assign(Assignor.STICKY, equals, partitions)
    rest = {member: topics for member, topics in equals.items() if member != leaver}
    after = assign(Assignor.STICKY, rest, partitions, previous=before)
    assert all(before[at] in (leaver, member) for at, member in after.items())
