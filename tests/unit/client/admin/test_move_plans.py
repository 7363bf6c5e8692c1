"""Plans to drain a broker and to level all, as tables and against what must always hold."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_logbus.client.admin.levels import BrokerLoad, distinct_racks
from spark_logbus.client.admin.move_plans import (
    MovePlan,
    PlacedPartition,
    Placement,
    PlannedMove,
    plan_drain,
    plan_move,
    plan_rebalance,
    plan_replicas,
)
from spark_logbus.errors import BrokerUnavailableError, InvalidRequestError, UnknownTopicError
from spark_logbus.model import TopicPartition

GB = 10**9


def placed(
    sizes: Mapping[int, Sequence[int | None]],
    *,
    running: Collection[int] | None = None,
    moving: Collection[int] | None = None,
    drained: Collection[int] = (),
    most: int = 1_000,
    to: Mapping[int, int] | None = None,
) -> Placement:
    """Partitions t-0, t-1, ... with these sizes, by broker; ``to``: where some are on their way."""
    partitions: list[PlacedPartition] = []
    for broker_id, of_broker in sizes.items():
        for size in of_broker:
            number = len(partitions)
            partitions.append(
                PlacedPartition(
                    topic_partition=TopicPartition("t", number),
                    replicas=(broker_id,),
                    size_bytes=size,
                    to=None if to is None or number not in to else (to[number],),
                )
            )
    runs = sizes.keys() if running is None else running
    return Placement(
        partitions=partitions,
        running=runs,
        moving=runs if moving is None else moving,
        drained=drained,
        most=most,
    )


def moved(plan: MovePlan) -> list[tuple[int, int]]:
    """The number of each partition that moves, and where it goes."""
    return [(move.topic_partition.partition, move.to[0]) for move in plan.moves]


class TestMove:
    @pytest.mark.parametrize(
        ("sizes", "to", "expected"),
        [
            ({1: [5, 5, 5], 2: []}, [2], [(0, 2), (1, 2), (2, 2)]),
            ({1: [5, 5], 2: [5]}, [2], [(0, 2), (1, 2)]),
            ({1: [5] * 5, 2: [], 3: []}, [2, 3], [(0, 2), (1, 3), (2, 2), (3, 3), (4, 2)]),
            ({1: [5] * 5, 2: [], 3: []}, [3, 2, 3], [(0, 3), (1, 2), (2, 3), (3, 2), (4, 3)]),
            # What is there stays, as far as the others get as many.
            ({1: [5] * 4, 2: []}, [1, 2], [(2, 2), (3, 2)]),
            ({1: [], 2: [5]}, [2], []),
        ],
    )
    def test_partitions_are_spread_over_brokers(
        self, sizes: Mapping[int, Sequence[int]], to: list[int], expected: list[tuple[int, int]]
    ) -> None:
        assert moved(plan_move(placed(sizes), "t", (), to)) == expected

    def test_some_partitions(self) -> None:
        sizes = {1: [5, 5, 5, None, 5], 2: [], 3: []}
        plan = plan_move(placed(sizes, to={0: 3, 4: 2}), "t", [3, 2, 0, 4], [2])
        assert moved(plan) == [(2, 2)]
        assert plan.under_way == (PlannedMove(TopicPartition("t", 4), 5, (1,), (2,)),)
        assert plan.left == {
            TopicPartition("t", 0): "It is on its way to broker 3; cancel that move.",
            TopicPartition("t", 3): "Its leader does not serve it now.",
        }

    @pytest.mark.parametrize(
        ("topic", "partitions", "to", "error", "said"),
        [
            ("u", (), 2, UnknownTopicError, "no topic 'u'"),
            ("t", (0, 7), 2, UnknownTopicError, "no partition 7; it has 2"),
            ("t", (), 9, InvalidRequestError, "no broker 9; there are: 1, 2, 3, 4, 5"),
            ("t", (), 3, InvalidRequestError, "3 runs a release that knows no moves"),
            ("t", (), 4, InvalidRequestError, "4 is being drained.*drain 4 --undo"),
            ("t", (), 5, BrokerUnavailableError, "5 is not running"),
        ],
    )
    def test_what_cannot_be_moved(
        self,
        topic: str,
        partitions: Sequence[int],
        to: int,
        error: type[Exception],
        said: str,
    ) -> None:
        placement = placed({1: [1], 5: [1]}, running=[1, 2, 3, 4], moving=[1, 2, 4, 5], drained=[4])
        with pytest.raises(error, match=said):
            plan_move(placement, topic, partitions, [to])


class TestDrain:
    def test_large_partitions_go_by_bytes(self) -> None:
        plan = plan_drain(placed({1: [5 * GB, 3 * GB, 3 * GB], 2: [4 * GB], 3: []}), 1)
        # 5 to the empty one, then 3 to the one with 4, then 3 to the one with 5.
        assert moved(plan) == [(0, 3), (1, 2), (2, 3)]
        assert plan.moves[0] == PlannedMove(TopicPartition("t", 0), 5 * GB, (1,), (3,))
        assert plan.size_bytes == 11 * GB
        assert plan.before == {
            1: BrokerLoad(3, 11 * GB), 2: BrokerLoad(1, 4 * GB), 3: BrokerLoad(0, 0),
        }  # fmt: skip
        assert plan.after == {
            1: BrokerLoad(0, 0), 2: BrokerLoad(2, 7 * GB), 3: BrokerLoad(2, 8 * GB),
        }  # fmt: skip
        assert plan.targets() == {TopicPartition("t", n): (to,) for n, to in moved(plan)}
        assert str(plan) == (
            "t-0: 5,000,000,000 bytes from broker 1 to broker 3\n"
            "t-1: 3,000,000,000 bytes from broker 1 to broker 2\n"
            "t-2: 3,000,000,000 bytes from broker 1 to broker 3\n"
            "3 partitions, 11,000,000,000 bytes."
        )

    def test_small_partitions_go_by_number(self) -> None:
        plan = plan_drain(placed({1: [0] * 100, 2: [4 * GB], 3: [7]}), 1)
        assert Counter(to for _, to in moved(plan)) == {2: 50, 3: 50}

    def test_what_is_on_its_way_counts_where_it_goes(self) -> None:
        # t-0 leaves already; t-1 comes to broker 1, which nothing ends but a cancel.
        plan = plan_drain(placed({1: [GB], 2: [GB], 3: [0]}, to={0: 3, 1: 1}), 1)
        assert plan.moves == ()
        assert plan.left == {
            TopicPartition("t", 1): "It is on its way to broker 1; cancel that move."
        }
        assert plan.before[3] == BrokerLoad(2, GB)
        assert plan.under_way == (PlannedMove(TopicPartition("t", 0), GB, (1,), (3,)),)

    def test_what_is_not_served_is_left_and_said(self) -> None:
        plan = plan_drain(placed({1: [GB, None], 2: []}), 1)
        assert moved(plan) == [(0, 2)]
        assert plan.left == {TopicPartition("t", 1): "Its leader does not serve it now."}
        assert str(plan).endswith("t-1 stays: Its leader does not serve it now.")

    def test_of_a_topic_with_very_many_the_first_go(self) -> None:
        plan = plan_drain(placed({1: [1] * 5, 2: []}, most=3, to={0: 2}), 1)
        assert moved(plan) == [(1, 2), (2, 2)]
        assert [each.partition for each in plan.left] == [3, 4]
        assert "At most 3 partitions of a topic" in plan.left[TopicPartition("t", 3)]

    @pytest.mark.parametrize(
        ("placement", "error", "said"),
        [
            (placed({1: [1], 2: []}), InvalidRequestError, "no broker 9; there are: 1, 2"),
            (placed({9: [1], 2: []}, running=[2]), BrokerUnavailableError, "9 is not running"),
            (placed({9: [1], 2: []}, moving=[2]), InvalidRequestError, "9 runs a release"),
            (placed({9: [1]}), InvalidRequestError, "no other broker runs"),
            (
                placed({9: [1], 2: [], 3: []}, drained=[9, 2], moving=[9, 2]),
                InvalidRequestError,
                "broker 2 is being drained; broker 3 runs a release that knows no moves",
            ),
        ],
    )
    def test_what_cannot_be_drained(
        self, placement: Placement, error: type[Exception], said: str
    ) -> None:
        with pytest.raises(error, match=said):
            plan_drain(placement, 9)

    def test_a_broker_that_has_nothing_needs_no_other(self) -> None:
        assert plan_drain(placed({9: []}, drained=[9]), 9).moves == ()
        assert plan_drain(placed({9: [1], 2: []}, to={0: 2}, running=[2]), 9).moves == ()


class TestRebalance:
    @pytest.mark.parametrize(
        ("sizes", "expected"),
        [
            ({}, []),
            ({1: [GB, GB]}, []),
            # Within 10 % of the mean, and numbers that differ by one.
            ({1: [10 * GB, 10 * GB], 2: [9 * GB, 9 * GB]}, []),
            ({1: [0] * 21, 2: [0] * 20}, []),
            # A third broker joins two.
            ({1: [GB] * 3, 2: [GB] * 3, 3: []}, [(0, 3), (3, 3)]),
            ({1: [3 * GB, 2 * GB, GB], 2: [2 * GB] * 3, 3: []}, [(1, 3), (3, 3)]),
            # Nothing that is smaller helps: the large one stays where it is.
            ({1: [100 * GB], 2: []}, []),
            ({1: [100 * GB, 1 * GB], 2: [0]}, []),
            # By numbers, the small ones.
            ({1: [5 * GB, 0, 0, 0], 2: [5 * GB]}, [(1, 2)]),
            ({1: [0] * 4, 2: []}, [(0, 2), (1, 2)]),
            # By numbers, as far as bytes stay level.
            ({1: [GB] * 10, 2: [5 * GB] * 2}, [(0, 2)]),
        ],
    )
    def test_by_bytes_then_by_number(
        self, sizes: Mapping[int, Sequence[int]], expected: list[tuple[int, int]]
    ) -> None:
        assert moved(plan_rebalance(placed(sizes))) == expected

    def test_only_to_and_from_brokers_that_can_take_part(self) -> None:
        sizes = {1: [GB] * 6, 2: [], 3: [], 4: [GB] * 6, 5: [GB] * 9, 6: []}
        plan = plan_rebalance(
            placed(sizes, running=[1, 2, 3, 4, 6], moving=[1, 2, 3, 4], drained=[3, 4])
        )
        assert {(move.replicas, move.to) for move in plan.moves} == {((1,), (2,))}
        assert len(plan.moves) == 3

    def test_what_is_on_its_way_is_not_sent_elsewhere_and_counts(self) -> None:
        sizes = {1: [GB] * 4, 2: []}
        plan = plan_rebalance(placed(sizes, to={0: 2}))
        assert moved(plan) == [(1, 2)]
        assert plan.under_way == (PlannedMove(TopicPartition("t", 0), GB, (1,), (2,)),)
        assert moved(plan_rebalance(placed(sizes, to={0: 2, 3: 2}))) == []

    def test_a_size_that_nobody_knows_stays(self) -> None:
        assert moved(plan_rebalance(placed({1: [None] * 4, 2: []}))) == []

    def test_ten_thousand_partitions_take_no_time(self) -> None:
        rng = random.Random(5)
        sizes = {1: [rng.randrange(GB) for _ in range(5_000)], 2: [GB] * 5_000, 3: [], 4: []}
        plan = plan_rebalance(placed(sizes, most=10_000))
        loads = [load.size_bytes for load in plan.after.values()]
        mean = sum(loads) / 4
        assert all(abs(each - mean) <= 0.1 * mean for each in loads)


brokers = st.lists(
    st.lists(st.integers(0, 40) | st.integers(0, 50 * GB), max_size=8), min_size=1, max_size=4
)


@given(brokers)
@example([[3], [(2 << 20) + 3], [1, 1, 1]])
@settings(max_examples=200, deadline=None)
def test_a_rebalance_never_makes_it_worse_and_comes_to_rest(sizes: list[list[int]]) -> None:
    placement = placed(dict(enumerate(sizes, 1)))
    plan = plan_rebalance(placement)
    assert all(move.replicas != move.to for move in plan.moves)
    assert len({move.topic_partition for move in plan.moves}) == len(plan.moves)

    before, after_plan = (
        [load.size_bytes for load in loads.values()] for loads in (plan.before, plan.after)
    )
    # Beyond what counts as level, no broker gets more than the fullest has, or less than the
    # emptiest.
    mean = sum(before) / len(before)
    slack = max(0.1 * mean, 1 << 20)
    assert max(after_plan) <= max(*before, mean + slack)
    assert min(after_plan) >= min(*before, mean - slack)
    # Once it is done, nothing is left to do.
    after = Placement(
        partitions=[
            PlacedPartition(
                topic_partition=each.topic_partition,
                replicas=plan.targets().get(each.topic_partition, each.replicas),
                size_bytes=each.size_bytes,
            )
            for each in placement.partitions
        ],
        running=placement.running,
        moving=placement.moving,
        drained=(),
    )
    assert plan_rebalance(after).moves == ()


@given(brokers, st.randoms())
@settings(max_examples=50, deadline=None)
def test_the_same_cluster_gets_the_same_plan(sizes: list[list[int]], rng: random.Random) -> None:
    placement = placed(dict(enumerate(sizes, 1)))
    shuffled = [*placement.partitions]
    rng.shuffle(shuffled)
    other = Placement(
        partitions=shuffled,
        running=[*reversed([*placement.running])],
        moving={*placement.moving},
        drained=(),
    )
    assert plan_rebalance(other) == plan_rebalance(placement)
    if len(sizes) > 1:
        assert plan_drain(other, 1) == plan_drain(placement, 1)


# -- several replicas -----------------------------------------------------------------------


def replicated(
    *lists: tuple[int, ...],
    size: int | None = GB,
    racks: Mapping[int, str | None] | None = None,
    running: Collection[int] = (1, 2, 3, 4),
    drained: Collection[int] = (),
    to: Mapping[int, tuple[int, ...]] | None = None,
) -> Placement:
    """Partitions t-0, t-1, ... with replicas at these brokers."""
    return Placement(
        partitions=[
            PlacedPartition(
                topic_partition=TopicPartition("t", number),
                replicas=replicas,
                size_bytes=size,
                to=(to or {}).get(number),
            )
            for number, replicas in enumerate(lists)
        ],
        running=running,
        moving=(1, 2, 3, 4, 5, 6),
        drained=drained,
        racks=racks or {},
    )


def lists_of(plan: MovePlan) -> dict[int, tuple[int, ...]]:
    return {move.topic_partition.partition: move.to for move in plan.moves}


RACKS = {1: "a", 2: "b", 3: "c", 4: "a", 5: "b", 6: "c"}


class TestReplicas:
    def test_a_drain_replaces_one_in_each_list_in_another_rack_than_the_rest(self) -> None:
        placement = replicated(
            (1, 2, 3), (2, 3, 1), (1, 2), (2, 3), racks=RACKS, running=(1, 2, 3, 4, 5, 6)
        )
        # Only broker 4 is in rack a too; where two replicas are, rack c is another one as well.
        plan = plan_drain(placement, 1)
        assert lists_of(plan)[0] == (4, 2, 3)
        assert lists_of(plan)[1] == (2, 3, 4)
        assert lists_of(plan)[2][0] in (3, 4, 6)
        assert plan.size_bytes == 3 * GB

    def test_without_another_rack_a_drain_takes_any(self) -> None:
        plan = plan_drain(replicated((1, 2), racks={1: "a", 2: "b", 3: "b", 4: "b"}), 1)
        assert lists_of(plan)[0] in ((3, 2), (4, 2))

    def test_a_broker_that_is_gone_is_drained_of_what_others_have(self) -> None:
        placement = replicated((1, 2), (1,), running=(2, 3, 4))
        assert lists_of(plan_drain(placement, 1)).keys() == {0, 1}
        with pytest.raises(BrokerUnavailableError, match="1 is not running"):
            plan_drain(replicated((1,), running=(2, 3, 4)), 1)

    def test_a_drain_with_too_few_brokers(self) -> None:
        with pytest.raises(InvalidRequestError, match=r"t-0 has 3 replicas.*--replicas 2"):
            plan_drain(replicated((1, 2, 3), running=(1, 2, 3)), 3)

    def test_a_whole_list(self) -> None:
        placement = replicated((1, 2), (3, 4))
        assert lists_of(plan_move(placement, "t", [0], [2, 3])) == {0: (2, 3)}
        assert lists_of(plan_move(placement, "t", (), [2, 3])) == {0: (2, 3), 1: (3, 2)}
        assert not plan_move(placement, "t", [0], [1, 2]).moves
        on_its_way = replicated((1, 2), (3, 4), to={0: (1, 4), 1: (1, 2)})
        plan = plan_move(on_its_way, "t", (), [2, 1])
        assert [move.topic_partition.partition for move in plan.under_way] == [1]
        assert "on its way to brokers 1, 4" in plan.left[TopicPartition("t", 0)]

    @pytest.mark.parametrize(
        ("to", "error", "said"),
        [
            ([2, 2], InvalidRequestError, "a broker of its own; got 2, 2"),
            ([2], InvalidRequestError, r"t-0 has 2 replicas, and 1 broker is named.*--replicas 1"),
            ([2, 3, 4], InvalidRequestError, r"and 3 brokers are named; name 2.*--replicas 3"),
            ([2, 9], InvalidRequestError, "no broker 9"),
            ([2, 5], BrokerUnavailableError, "5 is not running"),
        ],
    )
    def test_lists_that_cannot_be(self, to: list[int], error: type[Exception], said: str) -> None:
        with pytest.raises(error, match=said):
            plan_move(replicated((1, 2), (5, 1)), "t", [0], to)

    def test_more_replicas_in_other_racks_and_where_least_is(self) -> None:
        racks = {1: "a", 2: "a", 3: "b", 4: "b"}
        plan = plan_replicas(replicated((1,), (1,), (3,), racks=racks), "t", 2)
        found = lists_of(plan)
        assert {*found.values()} >= {(1, 4)}
        assert all(distinct_racks(each, racks) == 2 for each in found.values())

    def test_fewer_replicas_keep_the_preferred_leader_and_racks(self) -> None:
        racks = {1: "a", 2: "a", 3: "b", 4: "b"}
        plan = plan_replicas(replicated((1, 2, 3), (1, 4, 3), racks=racks), "t", 2)
        assert lists_of(plan)[0] == (1, 3)
        assert lists_of(plan)[1][0] == 1
        gone = replicated((1, 2, 3), running=(1, 2, 4))
        assert lists_of(plan_replicas(gone, "t", 2)) == {0: (1, 2)}

    @pytest.mark.parametrize("count", [0, 5])
    def test_a_number_of_replicas_that_cannot_be(self, count: int) -> None:
        with pytest.raises(InvalidRequestError, match=f"cannot have {count} replicas.*4 can"):
            plan_replicas(replicated((1, 2)), "t", count)

    def test_leaders_are_leveled_among_replicas(self) -> None:
        plan = plan_rebalance(replicated((1, 2), (1, 2), (1, 2), (1, 2), running=(1, 2)))
        assert sorted(lists_of(plan).values()) == [(2, 1), (2, 1)]
        assert plan.size_bytes == 0


replica_lists = st.lists(
    st.permutations(range(1, 7)).flatmap(
        lambda ids: st.integers(1, 4).map(lambda count: tuple(ids[:count]))
    ),
    min_size=1,
    max_size=12,
)
rack_names = st.fixed_dictionaries(
    {each: st.sampled_from([None, "a", "b", "c"]) for each in range(1, 7)}
)


@given(replica_lists, rack_names, st.integers(1, 5), st.sampled_from([0, 7, GB]))
@settings(max_examples=100, deadline=None)
def test_plans_of_replicas_keep_racks_and_put_none_twice(
    lists: list[tuple[int, ...]], racks: dict[int, str | None], count: int, size: int
) -> None:
    everyone = range(1, 7)
    placement = replicated(*lists, racks=racks, running=everyone, size=size)
    for plan in (
        plan_rebalance(placement),
        plan_drain(placement, 1),
        plan_replicas(placement, "t", count),
    ):
        for move in plan.moves:
            assert len({*move.to}) == len(move.to)
            assert {*move.to} <= {*everyone}
    for move in plan_rebalance(placement).moves:
        assert len(move.to) == len(move.replicas)
        assert distinct_racks(move.to, racks) >= distinct_racks(move.replicas, racks)
    drained = lists_of(plan_drain(placement, 1))
    for number, before in enumerate(lists):
        after = drained.get(number, before)
        assert 1 not in after
        assert len(after) == len(before)
        best = max(
            distinct_racks([*({*before} - {1}), each], racks) for each in everyone if each != 1
            and each not in before
        ) if 1 in before else 0  # fmt: skip
        assert 1 not in before or distinct_racks(after, racks) == best
    wanted = lists_of(plan_replicas(placement, "t", count))
    assert all(len(wanted.get(number, before)) == count for number, before in enumerate(lists))
    # Once it is level, it stays so.
    level = plan_rebalance(placement)
    after_all = [lists_of(level).get(number, before) for number, before in enumerate(lists)]
    assert not plan_rebalance(
        replicated(*after_all, racks=racks, running=everyone, size=size)
    ).moves
