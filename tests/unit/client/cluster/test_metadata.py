"""Metadata of brokers that hear of new leaders one after the other."""

from __future__ import annotations

from itertools import permutations

import pytest

from spark_logbus.client.cluster.metadata import LONG_AGO, Metadata
from spark_logbus.model import TopicPartition
from spark_logbus.protocol import BrokerInfo, MetadataResponse, PartitionInfo, TopicInfo

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
BROKERS = [BrokerInfo(number, f"host-{number}", 9092) for number in range(1, 10)]


def says(*leaders: tuple[int, int], topic_id: str = "a") -> MetadataResponse:
    """A response about one topic: leader and epoch of each partition."""
    parts = [PartitionInfo(n, leader, epoch) for n, (leader, epoch) in enumerate(leaders)]
    return MetadataResponse(BROKERS, [TopicInfo("t", topic_id, parts)])


def after(*responses: MetadataResponse, every_s: float = 1.0) -> Metadata:
    metadata = Metadata()
    for number, response in enumerate(responses):
        metadata = metadata.updated(response, learned_at=number * every_s)
    return metadata


def leader(metadata: Metadata, topic_partition: TopicPartition = T0) -> int | None:
    address = metadata.leader(topic_partition)
    return None if address is None else address.broker_id


def test_the_newest_epoch_counts_in_whatever_order_brokers_answer() -> None:
    answers = [says((1, 0), (5, 3)), says((2, 1), (4, 2)), says((3, 2), (6, 4)), says((2, 1))]
    for order in permutations(answers):
        metadata = after(*order)
        assert (leader(metadata), leader(metadata, T1)) == (3, 6)


def test_a_broker_that_is_behind_in_one_partition_is_heard_about_the_others() -> None:
    metadata = after(says((1, 5), (2, 0)), says((9, 4), (3, 1)))
    assert (leader(metadata), leader(metadata, T1)) == (1, 3)
    assert metadata.topics["t"].learned_at == 1.0


def test_who_has_not_heard_of_any_leader_takes_none_away_however_long() -> None:
    metadata = after(*[says((1, 0))] + [says((7, -1))] * 20, every_s=60)
    assert leader(metadata) == 1
    assert leader(after(says((7, -1)), says((1, 0)))) == 1


def test_added_partitions_stay_with_a_broker_that_has_not_heard_of_them() -> None:
    assert leader(after(says((1, 0), (2, 0)), says((1, 0))), T1) == 2


def test_a_topic_made_anew_starts_over() -> None:
    metadata = after(says((1, 9)), says((2, 0), topic_id="b"))
    assert leader(metadata) == 2
    assert metadata.topics["t"].epochs == {0: 0}


def test_a_broker_that_speaks_of_the_topic_before_makes_none_forgotten() -> None:
    metadata = after(says((1, 9)), says((2, 5), topic_id="b"), says((1, 9)))
    metadata = metadata.updated(says((3, 4), topic_id="b"), learned_at=4)
    assert leader(metadata) == 2, "epoch 5 of b was seen"
    assert leader(metadata.updated(says((4, 8)), learned_at=5)) == 1, "epoch 9 of a was seen"


def test_a_topic_that_nobody_knew_for_a_moment_comes_back_in_its_epoch() -> None:
    metadata = after(says((1, 9))).without("t")
    assert leader(metadata) is None
    assert leader(metadata.updated(says((2, 8)), learned_at=5)) == 1


def test_older_epochs_are_believed_when_all_say_so_for_long() -> None:
    before, put_back = says((1, 9)), says((2, 3))
    assert leader(after(before, put_back, put_back, every_s=80)) == 1
    metadata = after(before, put_back, put_back, put_back, every_s=80)
    assert leader(metadata) == 2
    assert leader(metadata.updated(says((3, 4)), learned_at=999)) == 3
    confirmed = after(before, put_back, before, put_back, every_s=80)
    assert leader(confirmed) == 1, "somebody has said otherwise meanwhile"


@pytest.mark.parametrize(
    ("said", "refused", "behind"),
    [
        (says((1, 5)), {}, False),
        (says((2, 6)), {}, False),
        (says((9, 4)), {}, True),
        (says((9, -1)), {}, True),
        (says((1, 5)), {("a", 0): 5}, True),
        (says((2, 6)), {("a", 0): 5}, False),
        (says((1, 5)), {("b", 0): 5, ("a", 1): 5}, False),
        (says((2, 0), topic_id="b"), {("a", 0): 5}, False),
        (says(), {("a", 0): 5}, False),
    ],
)
def test_a_response_is_behind_what_is_known_and_what_has_to_be(
    said: MetadataResponse, refused: dict[tuple[str, int], int], behind: bool
) -> None:
    assert after(says((1, 5))).is_behind(said, refused) is behind


def test_what_is_invalidated_keeps_its_epochs() -> None:
    metadata = after(says((1, 5))).invalidated("t")
    assert metadata.topics["t"].learned_at == LONG_AGO
    assert leader(metadata.updated(says((9, 4)), learned_at=2)) == 1


def test_replicas_are_those_of_the_newest_epoch() -> None:
    def copies(leader: int, epoch: int, in_sync: list[int]) -> MetadataResponse:
        part = PartitionInfo(0, leader, epoch, replicas=[1, 2, 3], in_sync=in_sync)
        return MetadataResponse(BROKERS, [TopicInfo("t", "a", [part])])

    topic = after(copies(2, 4, [2, 3]), copies(1, 3, [1, 2, 3])).topics["t"]
    assert (topic.replicas, topic.in_sync) == ({0: (1, 2, 3)}, {0: (2, 3)})
    alone = after(copies(2, 4, [2, 3]), says((2, 5))).topics["t"]
    assert (alone.replicas, alone.in_sync) == ({}, {})
