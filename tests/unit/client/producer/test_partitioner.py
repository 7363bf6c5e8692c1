from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_logbus.client.producer.partitioner import RoundRobin, partition_of, split_by_key

keys = st.one_of(
    st.lists(st.one_of(st.none(), st.binary(max_size=3)), min_size=1, max_size=60),
    st.integers(1, 20).flatmap(
        lambda length: st.lists(st.binary(min_size=length, max_size=length), min_size=1)
    ),
)


@given(keys=keys, partitions=st.integers(1, 7), data=st.data())
def test_columns_and_single_records_follow_the_same_rule(
    keys: list[bytes | None], partitions: int, data: st.DataObject
) -> None:
    keyless = data.draw(st.integers(0, partitions - 1))
    batch = pa.RecordBatch.from_arrays(
        [pa.array(keys, pa.binary()), pa.array(range(len(keys)))], names=["key", "number"]
    )
    expected: dict[int, list[int]] = {}
    for number, key in enumerate(keys):
        to = keyless if key is None else partition_of(key, partitions)
        expected.setdefault(to, []).append(number)
    parts = split_by_key(batch, partitions=partitions, keyless=keyless)
    assert {to: part.column("number").to_pylist() for to, part in parts.items()} == expected


def test_without_a_key_column_all_stay_together() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([b"a"])], names=["value"])
    assert split_by_key(batch, partitions=4, keyless=2) == {2: batch}


def test_round_robin_comes_around() -> None:
    turns = RoundRobin(3, start=2)
    seen = []
    for _ in range(4):
        seen.append(turns.current)
        turns.move_on()
    assert seen == [2, 0, 1, 2]


def test_the_hash_of_a_key_never_changes() -> None:
    # Stored data depends on it: equal keys must meet in one partition across releases.
    assert [partition_of(key, 16) for key in (b"", b"a", b"logbus", b"123456789")] == [
        0, 0, 11, 3,
    ]  # fmt: skip
