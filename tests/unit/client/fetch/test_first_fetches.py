"""The beginnings of many ranges, fetched together."""

from __future__ import annotations

import pytest

from spark_logbus.client import Cluster, RangeReader
from spark_logbus.client.fetch import first_fetches
from spark_logbus.client.fetch.first_fetches import FirstFetch, FirstFetches
from spark_logbus.client.fetch.values import ValueReader
from spark_logbus.client.schemas.topic import ValueSchemas
from spark_logbus.errors import LogbusError, NotLeaderError
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.protocol import Api, FetchRequest
from spark_logbus.topic_schemas import Encoding
from tests.builders.arrow_batches import numbered, record_batch
from tests.builders.typed import FLIGHT, flights, typed_record_batch
from tests.fakes.broker import FakeCluster, FaultKind

RECORDS = 20
IDS = {"t": "id-t"}


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_fetches, "_PATIENCE_MS", 30_000)


def ranges(count: int, *, start: int = 0, end: int = RECORDS) -> list[OffsetRange]:
    return [OffsetRange(TopicPartition("t", number), start, end) for number in range(count)]


def fill(fake: FakeCluster, partitions: int) -> None:
    fake.create("t", partitions=partitions)
    for each in ranges(partitions):
        for start in range(0, RECORDS, 5):
            fake.append(each.topic_partition, record_batch(numbered(start, 5)))


def fetches(fake: FakeCluster) -> list[int]:
    """Returns the number of partitions that each fetch asked for."""
    asked = [request for broker in fake.brokers for request in broker.requests]
    return [len(each.partitions) for each in asked if isinstance(each, FetchRequest)]


def read(cluster: Cluster, wanted: list[OffsetRange]) -> list[list[bytes]]:
    """The values of each range, read as a task does."""
    first = FirstFetches(cluster, wanted, IDS)
    values: list[list[bytes]] = []
    for number, each in enumerate(wanted):
        with RangeReader(cluster, each, topic_id="id-t", received=first.take(number)) as reader:
            found = [one.arrow_batch.column("value").to_pylist() for one in reader]
        values.append([value for some in found for value in some])
    return values


def test_one_request_to_each_leader_brings_all(fake: FakeCluster, cluster: Cluster) -> None:
    fill(fake, 6)
    assert read(cluster, ranges(6)) == [numbered(0, RECORDS)] * 6
    assert fetches(fake) == [3, 3]


def test_ranges_that_begin_within_a_record_batch_are_cut(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fill(fake, 3)
    assert read(cluster, ranges(3, start=7, end=18)) == [numbered(7, 11)] * 3
    assert sorted(fetches(fake)) == [1, 2]


def test_what_has_no_room_comes_with_the_next_round(
    fake: FakeCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(fake, 12)
    size = sum(len(record_batch(numbered(start, 5))) for start in range(0, RECORDS, 5))
    monkeypatch.setattr(first_fetches, "_MAX_BYTES", 4 * size)
    monkeypatch.setattr(first_fetches, "_MAX_RANGE_BYTES", size)
    assert read(cluster, ranges(12)) == [numbered(0, RECORDS)] * 12
    assert sorted(fetches(fake)) == [2, 2, 4, 4, 6, 6]


def test_a_long_range_is_read_on_from_where_it_was_cut(
    fake: FakeCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(fake, 4)
    monkeypatch.setattr(first_fetches, "_MAX_RANGE_BYTES", 2 * len(record_batch(numbered(0, 5))))
    assert read(cluster, ranges(4)) == [numbered(0, RECORDS)] * 4
    assert fetches(fake) == [2, 1, 1] * 2


def test_choices_of_columns_take_a_bounded_part_of_a_request(
    fake: FakeCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_fetches, "_MAX_CHOICE_BYTES", 200)
    fake.create("t", partitions=6)
    for each in ranges(6):
        fake.append(each.topic_partition, typed_record_batch(flights(0, RECORDS)))
    schemas = ValueSchemas("t", Encoding.COLUMNS, FLIGHT, {1: FLIGHT})
    values = ValueReader(schemas, fields=["number"], columns=[])
    first = FirstFetches(cluster, ranges(6), IDS, values={"t": values})
    for number, each in enumerate(ranges(6)):
        with RangeReader(
            cluster, each, topic_id="id-t", received=first.take(number), values=values
        ) as reader:
            [found] = reader
        assert found.arrow_batch.column("value").to_pylist()[7] == {"number": 7}
    assert sum(fetches(fake)) == 6
    assert len(fetches(fake)) > 2, "rounds of fewer ranges"


@pytest.mark.parametrize("kind", ["drop_before", "half", "error", "partition_error"])
def test_a_first_fetch_that_fails_is_made_again_for_each(
    fake: FakeCluster, cluster: Cluster, kind: FaultKind
) -> None:
    fill(fake, 4)
    error: LogbusError | None = NotLeaderError("not now") if "error" in kind else None
    fake.brokers[0].fault(Api.FETCH, kind, error)
    assert read(cluster, ranges(4)) == [numbered(0, RECORDS)] * 4
    assert not fake.brokers[0].faults[Api.FETCH]


def test_a_damaged_first_fetch_is_met_by_the_reader(fake: FakeCluster, cluster: Cluster) -> None:
    fill(fake, 2)
    reader = RangeReader(
        cluster, ranges(1)[0], topic_id="id-t", received=FirstFetch(memoryview(bytes(400)))
    )
    assert [one.base_offset for one in reader] == [0, 5, 10, 15]


def test_ranges_of_a_silent_leader_do_not_hold_up_the_others(
    fake: FakeCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(fake, 4)
    monkeypatch.setattr(first_fetches, "_PATIENCE_MS", 1_500)
    silent = fake.brokers[0].fault(Api.FETCH, "hang")
    first = FirstFetches(cluster, ranges(4), IDS)
    received = [first.take(number) is not None for number in range(4)]
    silent.release.set()
    assert received == [False, True, False, True]
