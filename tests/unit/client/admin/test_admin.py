from __future__ import annotations

from dataclasses import replace

import pytest

from spark_logbus.client import Admin, Cluster
from spark_logbus.errors import (
    BrokerUnavailableError,
    InvalidNameError,
    NotLeaderError,
    RequestTimeoutError,
    TopicExistsError,
    UnknownTopicError,
)
from spark_logbus.model import (
    AtOffset,
    AtTimestamp,
    Earliest,
    LastDuration,
    LastRecords,
    Latest,
    OffsetRange,
    OffsetSpec,
    TopicPartition,
)
from spark_logbus.protocol import Api, DeleteTopicRequest, PartitionEnds
from spark_logbus.times import MAX_DURATION_US
from tests.builders.arrow_batches import QUICK, T0, T1, numbered, record_batch
from tests.fakes.broker import FakeCluster


@pytest.fixture
def admin(cluster: Cluster) -> Admin:
    return Admin(cluster)


def test_create_describe_delete(fake: FakeCluster, admin: Admin) -> None:
    created = admin.create_topic("t", partitions=2, config={"retention.ms": "5"})
    assert created.topic_id == "id-t"
    assert created.config == {"retention.ms": "5"}
    assert [part.leader for part in created.partitions.values()] == [
        broker.address for broker in fake.brokers
    ]
    assert [topic.name for topic in admin.topics()] == ["t"]
    admin.delete_topic("t")
    assert admin.topics() == []
    with pytest.raises(UnknownTopicError):
        admin.delete_topic("t")
    with pytest.raises(UnknownTopicError):
        admin.describe(["t"])


def test_creating_twice(admin: Admin) -> None:
    admin.create_topic("t", partitions=1)
    with pytest.raises(TopicExistsError):
        admin.create_topic("t", partitions=1)
    assert admin.create_topic("t", partitions=1, if_not_exists=True).name == "t"
    with pytest.raises(InvalidNameError):
        admin.create_topic("a/b", partitions=1)


@pytest.mark.parametrize("deleting", [False, True])
def test_a_lost_reply_is_no_failure(fake: FakeCluster, admin: Admin, deleting: bool) -> None:
    if deleting:
        admin.create_topic("t", partitions=1)
    for broker in fake.brokers:
        broker.fault(Api.DELETE_TOPIC if deleting else Api.CREATE_TOPIC, "drop_after")
    if deleting:
        admin.delete_topic("t")
        assert admin.topics() == []
        asked = [one for broker in fake.brokers for one in broker.requests]
        deletions = [one for one in asked if isinstance(one, DeleteTopicRequest)]
        # By its id, so none of them can delete another topic of that name.
        assert len(deletions) > 1
        assert {one.topic_id for one in deletions} == {"id-t"}
    else:
        assert admin.create_topic("t", partitions=1).name == "t"


@pytest.mark.parametrize("deleting", [False, True])
def test_a_reply_that_one_broker_loses_is_no_failure(
    fake: FakeCluster, admin: Admin, deleting: bool
) -> None:
    """The next one that is asked finds it done, by the same request."""
    first = fake.brokers[0]
    lost = first.fault(Api.DELETE_TOPIC if deleting else Api.CREATE_TOPIC, "drop_after")
    for number in range(50):  # until chance has that broker asked first
        admin.create_topic(f"t{number}", partitions=1)
        if deleting:
            admin.delete_topic(f"t{number}")
        if lost.met.is_set():
            break
    assert lost.met.is_set()
    assert [topic.name for topic in admin.topics()] == (
        [] if deleting else sorted(f"t{each}" for each in range(number + 1))
    )


def test_creating_waits_until_all_brokers_know(fake: FakeCluster) -> None:
    fake.brokers[1].hears_of_topics = False
    with Cluster.connect(fake.bootstrap, QUICK) as cluster:
        with pytest.raises(RequestTimeoutError, match="has not yet heard"):
            Admin(cluster).create_topic("t", partitions=1, timeout_ms=2_000)
        fake.brokers[1].hears_of_topics = True
        Admin(cluster).create_topic("t", partitions=1, if_not_exists=True, timeout_ms=5_000)


def test_ends_come_from_the_leaders(fake: FakeCluster, admin: Admin) -> None:
    fake.create("t", partitions=2)
    data = record_batch(numbered(0, 5))
    fake.append(T1, data)
    ends = {n: part.ends for n, part in admin.describe(["t"])["t"].partitions.items()}
    assert ends == {0: PartitionEnds(0, 0, 0, 0), 1: PartitionEnds(0, 5, 5, len(data))}
    assert admin.describe(ends=False)["t"].partitions[0].ends is None
    fake.brokers[1].stop()
    part = admin.describe()["t"].partitions[1]
    assert part.leader is None
    assert part.ends is None


@pytest.mark.parametrize("replaced", [0, 1])
def test_ends_come_from_the_newest_leaders(
    fake: FakeCluster, cluster: Cluster, admin: Admin, replaced: int
) -> None:
    """A leader that has not heard that it was replaced is asked first, or last."""
    fake.create("t", partitions=2)
    where = TopicPartition("t", replaced)
    admin.describe(["t"])
    before, after = fake.brokers[replaced], fake.brokers[1 - replaced]
    before.stop_hearing()
    fake.hand_over(where, after.broker_id)
    data = record_batch(numbered(0, 5))
    fake.append(where, data)
    cluster.note_silence(after.address)  # so the one before is asked who leads
    part = admin.describe(["t"])["t"].partitions[replaced]
    assert part.ends == PartitionEnds(0, 5, 5, len(data))
    assert cluster.leads(where, after.address)


def test_offsets_that_specs_mean(fake: FakeCluster, admin: Admin) -> None:
    fake.create("t", partitions=2)
    for start in (0, 10, 20):  # timestamps 1000 to 1029
        fake.append(T0, record_batch(numbered(start, 10), first_us=1_000 + start))
    fake.partition(T1).start = 7
    table: list[tuple[TopicPartition, OffsetSpec, int | None]] = [
        (T0, Earliest(), 0),
        (T1, Earliest(), 7),
        (T0, Latest(), 30),
        (T0, AtOffset(99), 99),
        (T0, AtTimestamp(0), 0),
        (T0, AtTimestamp(1_000), 0),
        (T0, AtTimestamp(1_001), 1),
        (T0, AtTimestamp(1_009), 9),
        (T0, AtTimestamp(1_010), 10),
        (T0, AtTimestamp(1_025), 25),
        (T0, AtTimestamp(1_030), None),
        (T1, AtTimestamp(0), None),
        (T0, LastRecords(8), 22),
        (T0, LastRecords(31), 0),
        (T1, LastRecords(3), 7),
        (T0, LastDuration(MAX_DURATION_US), 0),
        (T0, LastDuration(5), None),
    ]
    for topic_partition, spec, expected in table:
        assert admin.list_offsets({topic_partition: spec}) == {topic_partition: expected}, spec
    assert admin.list_offsets({}) == {}
    mixed: dict[TopicPartition, OffsetSpec] = {T1: LastRecords(1), T0: AtTimestamp(1_005)}
    assert admin.list_offsets(mixed) == {T1: 7, T0: 5}
    assert admin.find_offsets(mixed).found == {T1: 7, T0: 5}


def test_leaders_are_asked_anew_when_they_refuse(fake: FakeCluster, admin: Admin) -> None:
    fake.create("t", partitions=2)
    admin.list_offsets({T0: Latest(), T1: Latest()})
    fake.append(T0, record_batch(numbered(0, 3)))
    fake.partition(T0).leader = 2
    fake.brokers[1].fault(Api.LIST_OFFSETS, "drop_after")
    assert admin.list_offsets({T0: Latest(), T1: Latest()}) == {T0: 3, T1: 0}


@pytest.mark.long
def test_a_leader_that_stays_away_is_named(fake: FakeCluster) -> None:
    fake.create("t", partitions=2)
    fake.brokers[1].stop()
    config = replace(QUICK, retry_deadline_ms=1_000)
    with Cluster.connect(fake.bootstrap, config) as cluster:
        with pytest.raises(BrokerUnavailableError, match="broker 2, is not running"):
            Admin(cluster).list_offsets({T0: Latest(), T1: Latest()})
        fake.partition(T0).leader = 9
        with pytest.raises((NotLeaderError, BrokerUnavailableError), match="broker 9"):
            Admin(cluster).list_offsets({T0: Latest()})


def test_ranges_are_split_where_record_batches_meet(fake: FakeCluster, admin: Admin) -> None:
    fake.create("t", partitions=2)
    for start in (0, 10, 20):
        fake.append(T0, record_batch(numbered(start, 10)))
    whole, part, empty = OffsetRange(T0, 0, 30), OffsetRange(T0, 12, 25), OffsetRange(T1, 0, 0)
    split = admin.split_many([whole, part, empty], target_bytes=1)
    assert [(one.start, one.end) for one in split[whole][0]] == [(0, 10), (10, 20), (20, 30)]
    assert [(one.start, one.end) for one in split[part][0]] == [(12, 20), (20, 25)]
    assert split[empty] == ([], 0)
    assert admin.split(whole, target_bytes=1) == split[whole]
