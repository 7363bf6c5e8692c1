"""The sink's columns, and rows sorted by destination."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_logbus.errors import InvalidOptionError, InvalidRequestError
from spark_logbus.sink.columns import Destination, SinkColumns, by_destination, check_columns

HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, dtype) for name, dtype in columns.items()])


def test_what_the_columns_say() -> None:
    full = schema(
        value=StringType(), key=BinaryType(), headers=HEADERS, timestamp=TimestampType(),
        topic=StringType(), partition=IntegerType(), offset=LongType(),
    )  # fmt: skip
    assert check_columns(full, topic_given=False) == SinkColumns(
        record=("value", "key", "headers", "timestamp"), has_topic=True, has_partition=True
    )
    assert not check_columns(full, topic_given=True).has_topic


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"key": BinaryType()}, "needs a column value .* the DataFrame has key"),
        ({"value": LongType()}, "Column value has the type bigint, .* binary or string"),
        ({"value": BinaryType(), "key": IntegerType()}, "Column key has the type int"),
        ({"value": BinaryType(), "topic": BinaryType()}, "Column topic has the type binary"),
        ({"value": BinaryType(), "partition": LongType()}, "Column partition has the type bigint"),
        ({"value": BinaryType(), "headers": StringType()}, "Column headers has the type string"),
        ({"value": BinaryType(), "timestamp": TimestampNTZType()}, "Column timestamp"),
        ({"value": BinaryType(), "patition": IntegerType()}, "patition .* did you mean partition"),
        ({"value": BinaryType(), "Key": IntegerType()}, "Key .* did you mean key"),
    ],
)
def test_refusals_name_the_column(columns: dict[str, DataType], said: str) -> None:
    with pytest.raises(InvalidOptionError, match=said):
        check_columns(schema(**columns), topic_given=True)


def test_a_topic_is_needed_from_somewhere() -> None:
    with pytest.raises(InvalidOptionError, match="set the option topic, or add a column topic"):
        check_columns(schema(value=BinaryType()), topic_given=False)


def test_a_column_twice() -> None:
    twice = StructType([StructField("value", BinaryType()), StructField("value", StringType())])
    with pytest.raises(InvalidOptionError, match="2 columns named value"):
        check_columns(twice, topic_given=True)


def test_other_columns_are_passed_over() -> None:
    columns = schema(value=BinaryType(), offset=LongType(), timestampType=IntegerType())
    assert check_columns(columns, topic_given=True).record == ("value",)


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "c"]), st.one_of(st.none(), st.integers(0, 3))),
        min_size=1,
        max_size=60,
    )
)
def test_rows_go_to_their_destinations_in_order(rows: list[tuple[str, int | None]]) -> None:
    arrow_batch = pa.RecordBatch.from_pydict(
        {
            "value": [str(number).encode() for number in range(len(rows))],
            "topic": [topic for topic, _ in rows],
            "partition": pa.array([partition for _, partition in rows], pa.int32()),
        }
    )
    columns = SinkColumns(record=("value",), has_topic=True, has_partition=True)
    got = {
        destination: [int(value) for value in part.column("value").to_pylist()]
        for destination, part in by_destination(arrow_batch, columns, topic=None)
    }
    expected: dict[Destination, list[int]] = {}
    for number, (topic, partition) in enumerate(rows):
        expected.setdefault(Destination(topic, partition), []).append(number)
    assert got == expected


def one_batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_the_option_topic_wins_and_columns_of_the_record_stay() -> None:
    arrow_batch = one_batch(value=[b"a", None], key=["k", None], topic=[None, "x"])
    columns = SinkColumns(record=("value", "key"), has_topic=False, has_partition=False)
    [(destination, part)] = by_destination(arrow_batch, columns, topic="t")
    assert destination == Destination("t", None)
    assert part.to_pydict() == {"value": [b"a", None], "key": ["k", None]}


def test_a_row_without_a_topic_is_an_error() -> None:
    columns = SinkColumns(record=("value",), has_topic=True, has_partition=False)
    with pytest.raises(InvalidRequestError, match="Column topic is null in 1 of 2 rows"):
        list(by_destination(one_batch(value=[b"", b""], topic=["t", None]), columns, topic=None))


def test_timestamps_of_any_session_timezone_keep_their_instant() -> None:
    zoned = pa.array([1_700_000_000_000_001], pa.timestamp("us", tz="America/New_York"))
    columns = SinkColumns(record=("value", "timestamp"), has_topic=False, has_partition=False)
    arrow_batch = pa.RecordBatch.from_arrays(
        [pa.array([b"a"]), zoned], names=["value", "timestamp"]
    )
    [(_, part)] = by_destination(arrow_batch, columns, topic="t")
    assert part.column("timestamp").type == pa.timestamp("us", tz="UTC")
    assert part.column("timestamp").cast(pa.int64()).to_pylist() == [1_700_000_000_000_001]
