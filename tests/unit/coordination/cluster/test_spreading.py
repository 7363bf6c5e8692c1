"""Placement of partitions and their replicas on brokers and racks."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_logbus.coordination.cluster.spreading import enlarge, spread
from spark_logbus.coordination.cluster.topic_records import TopicRecord


def record(partitions: dict[int, list[int]]) -> TopicRecord:
    return TopicRecord(name="t", topic_id="i", partitions=partitions, config={})


def span(counts: Mapping[int, int], brokers: Iterable[int]) -> int:
    """Difference between the broker that has the most and the one that has the least."""
    have = [counts.get(each, 0) for each in brokers]
    return max(have) - min(have)


def replicas_of(assigned: Mapping[int, list[int]]) -> Counter[int]:
    return Counter(itertools.chain.from_iterable(assigned.values()))


def leaders_of(assigned: Mapping[int, list[int]]) -> Counter[int]:
    return Counter(members[0] for members in assigned.values())


def test_the_first_topic_starts_with_the_lowest_broker() -> None:
    assert spread(partitions=3, brokers=[5, 2], existing=[]) == {0: [2], 1: [5], 2: [2]}


def test_the_next_starts_with_the_broker_that_leads_the_fewest() -> None:
    existing = [record({0: [1], 1: [2], 2: [1]})]
    assert spread(partitions=2, brokers=[1, 2, 3], existing=existing) == {0: [3], 1: [1]}


def test_brokers_that_are_gone_do_not_count() -> None:
    assert spread(partitions=1, brokers=[1, 1], existing=[record({0: [9]})]) == {0: [1]}


@given(
    brokers=st.sets(st.integers(0, 50), min_size=1, max_size=8),
    topics=st.lists(st.integers(1, 12), max_size=12),
)
def test_load_stays_even(brokers: set[int], topics: list[int]) -> None:
    existing: list[TopicRecord] = []
    for partitions in topics:
        assigned = spread(partitions=partitions, brokers=brokers, existing=existing)
        assert list(assigned) == list(range(partitions))
        assert span(leaders_of(assigned), brokers) <= 1
        existing.append(record(assigned))


def test_three_brokers_with_three_replicas_each_lead_a_third() -> None:
    assert spread(partitions=6, replicas=3, brokers=[1, 2, 3], existing=[]) == {
        0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2], 3: [1, 3, 2], 4: [2, 1, 3], 5: [3, 2, 1],
    }  # fmt: skip


@given(
    brokers=st.sets(st.integers(0, 50), min_size=1, max_size=9),
    partitions=st.integers(1, 40),
    data=st.data(),
)
def test_replicas_are_on_different_brokers_and_even(
    brokers: set[int], partitions: int, data: st.DataObject
) -> None:
    replicas = data.draw(st.integers(1, len(brokers)))
    assigned = spread(partitions=partitions, replicas=replicas, brokers=brokers, existing=[])
    assert list(assigned) == list(range(partitions))
    for members in assigned.values():
        assert len(members) == len({*members}) == replicas
        assert {*members} <= brokers
    assert span(leaders_of(assigned), brokers) <= 1
    assert span(replicas_of(assigned), brokers) <= 2


@given(
    racks=st.dictionaries(
        st.integers(0, 30), st.sampled_from(["a", "b", "c", "d", None]), min_size=1, max_size=10
    ),
    partitions=st.integers(1, 30),
    data=st.data(),
)
def test_racks_fail_alone(
    racks: dict[int, str | None], partitions: int, data: st.DataObject
) -> None:
    """Gives no rack more of a partition than it must have, however unlike the racks are."""
    replicas = data.draw(st.integers(1, len(racks)))
    assigned = spread(
        partitions=partitions, replicas=replicas, brokers=racks, racks=racks, existing=[]
    )
    rack_of = {each: rack or f"broker {each}" for each, rack in racks.items()}
    size = Counter(rack_of.values())
    for members in assigned.values():
        assert len(members) == len({*members}) == replicas
        used = Counter(rack_of[each] for each in members)
        # One more in the fullest than in any that still has a broker without a replica.
        spare = [used[rack] for rack, brokers in size.items() if used[rack] < brokers]
        assert max(used.values()) - min(spare, default=max(used.values())) <= 1
        if replicas <= len(size):
            assert max(used.values()) == 1
    assert span(leaders_of(assigned), racks) <= 1


@pytest.mark.parametrize("each", [1, 2, 3])
@pytest.mark.parametrize("neighbours", [True, False])
def test_racks_of_one_size_are_loaded_evenly(each: int, neighbours: bool) -> None:
    brokers = range(3 * each)
    racks = {at: f"rack {at // each if neighbours else at % 3}" for at in brokers}
    for partitions in range(1, 4 * len(brokers)):
        assigned = spread(
            partitions=partitions, replicas=3, brokers=brokers, racks=racks, existing=[]
        )
        assert span(replicas_of(assigned), brokers) <= 2
        assert span(leaders_of(assigned), brokers) <= 1


def test_the_followers_of_one_leader_take_turns() -> None:
    assigned = spread(partitions=50, replicas=2, brokers=range(5), existing=[])
    assert {tuple(members) for members in assigned.values()} == {
        *itertools.permutations(range(5), 2)
    }


def test_topics_of_one_partition_are_spread_with_their_replicas() -> None:
    existing: list[TopicRecord] = []
    for _ in range(12):
        existing.append(
            record(spread(partitions=1, replicas=2, brokers=range(4), existing=existing))
        )
    everything = {at: each.partitions[0] for at, each in enumerate(existing)}
    assert span(leaders_of(everything), range(4)) == 0
    assert span(replicas_of(everything), range(4)) <= 1


class TestEnlarging:
    def test_more_partitions_have_as_many_replicas(self) -> None:
        before = record({0: [1, 2], 1: [2, 3]})
        after = enlarge(before, partitions=4, brokers=[1, 2, 3], others=[before])
        assert [*after.partitions] == [0, 1, 2, 3]
        assert {0: [1, 2], 1: [2, 3]}.items() <= after.partitions.items()
        assert all(len(members) == 2 for members in after.partitions.values())

    def test_a_topic_whose_replicas_are_being_changed_gets_the_most(self) -> None:
        before = record({0: [1], 1: [2, 3, 1]})
        after = enlarge(before, partitions=3, brokers=[1, 2, 3], others=[])
        assert len(after.partitions[2]) == 3

    def test_racks_count(self) -> None:
        racks = {1: "a", 2: "a", 3: "b"}
        after = enlarge(record({0: [1, 3]}), partitions=9, brokers=racks, racks=racks, others=[])
        assert all(3 in members for members in after.partitions.values())

    @pytest.mark.parametrize("partitions", [0, 1, 2])
    def test_none_is_taken_away(self, partitions: int) -> None:
        before = record({0: [1, 2], 1: [2, 1]})
        assert enlarge(before, partitions=partitions, brokers=[], others=[]) == before
