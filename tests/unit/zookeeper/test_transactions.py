"""The pure parts: spreading partitions, cutting transactions."""

from __future__ import annotations

from collections import Counter
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from kazoo.client import KazooClient
from kazoo.protocol.serialization import Transaction

from spark_logbus.coordination.cluster.topic_records import TopicRecord, spread
from spark_logbus.zookeeper.transactions import (
    Check,
    Create,
    Delete,
    Operation,
    SetData,
    in_parts,
    size_of,
)


def record(partitions: dict[int, list[int]]) -> TopicRecord:
    return TopicRecord(name="t", topic_id="i", partitions=partitions, config={})


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
        counts = Counter(brokers_of[0] for brokers_of in assigned.values())
        assert max(counts.values()) - min(counts[b] for b in brokers) <= 1
        existing.append(record(assigned))


operations = st.one_of(
    st.builds(Create, path=st.just("/a"), data=st.binary(max_size=100)),
    st.builds(SetData, path=st.just("/b"), data=st.binary(max_size=100)),
    st.builds(Delete, path=st.just("/c")),
)


@given(wanted=st.lists(operations, max_size=30))
def test_parts_fit_and_hold_everything_in_order(wanted: list[Operation]) -> None:
    check = Check("/fence", 3)
    with patch("spark_logbus.zookeeper.transactions.MAX_TRANSACTION_BYTES", 400):
        parts = list(in_parts(wanted, each_with=[check]))
    assert all(size_of(part) <= 400 for part in parts)
    assert all(part[0] == check for part in parts)
    assert [operation for part in parts for operation in part[1:]] == wanted


def test_nothing_to_do_is_no_transaction() -> None:
    assert list(in_parts([], each_with=[Check("/fence", 3)])) == []


def test_the_size_of_a_transaction_is_not_underrated() -> None:
    wanted: list[Operation] = [
        Check("/check", 3),
        Create("/create", b"data", ephemeral=True),
        SetData("/set", b"data", 4),
        Delete("/delete", 5),
    ]
    transaction = KazooClient().transaction()
    transaction.check("/check", 3)
    transaction.create("/create", b"data", ephemeral=True)
    transaction.set_data("/set", b"data", 4)
    transaction.delete("/delete", 5)
    for operation, request in zip(wanted, transaction.operations, strict=True):
        end = len(Transaction([]).serialize())
        assert len(Transaction([request]).serialize()) - end <= size_of([operation])
