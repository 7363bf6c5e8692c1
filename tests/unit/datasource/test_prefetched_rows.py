"""What is used of PySpark's private part that takes rows with the input partition.

When a test here fails after an upgrade of PySpark, streams still read, but by tasks: see which part
of ``prefetched_rows`` no longer fits.
"""

from __future__ import annotations

import io
import json
import logging
import pickle
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.serializers import SpecialLengths
from pyspark.sql import datasource_internal
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming import python_streaming_source_runner as runner
from pyspark.sql.types import LongType, StructType

from spark_logbus.datasource import prefetched_rows

SCHEMA = StructType().add("n", LongType())
START, END = {"n": 0}, {"n": 3}


def numbers(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": list(values)})


class Reader(DataSourceStreamReader):
    """Hands over what ``rows`` are; None leaves them to its task."""

    def __init__(self) -> None:
        self.rows: list[pa.RecordBatch] | None = None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if self.rows is not None:
            prefetched_rows.hand_over(self, self.rows)
        return [InputPartition((start["n"], end["n"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise AssertionError("no task reads here")


class Changed:
    """Ways in which another PySpark may differ from what is used of this one."""

    @staticmethod
    def without_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(datasource_internal, "_SimpleStreamReaderWrapper")

    @staticmethod
    def with_a_function_instead(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(datasource_internal, "_SimpleStreamReaderWrapper", lambda reader: None)

    @staticmethod
    def that_asks_for_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(datasource_internal._SimpleStreamReaderWrapper, "getCache")

    @staticmethod
    def that_asks_in_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
        def get_cache(self: Any, end: dict[str, Any]) -> None: ...

        monkeypatch.setattr(datasource_internal._SimpleStreamReaderWrapper, "getCache", get_cache)

    @staticmethod
    def that_does_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
        def partitions_func(reader: DataSourceStreamReader) -> None: ...

        monkeypatch.setattr(sys.modules["__main__"], "partitions_func", partitions_func)

    @staticmethod
    def whose_runner_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(sys.modules["__main__"], "partitions_func")


CHANGES = [each for name, each in vars(Changed).items() if not name.startswith("__")]


@pytest.fixture(autouse=True)
def in_a_runner(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PySpark's runner is the program that runs, as it is in a stream's planner."""
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "partitions_func", runner.partitions_func, raising=False)
    prefetched_rows.is_available.cache_clear()
    yield
    prefetched_rows.is_available.cache_clear()


def number_in(stream: io.BytesIO) -> int:
    return int.from_bytes(stream.read(4), signed=True)


def ask(reader: Reader) -> tuple[tuple[int, int], int, list[int]]:
    """Returns what PySpark's runner writes to the JVM: the input partition, the status, the
    rows."""
    asked, answered = io.BytesIO(), io.BytesIO()
    for offset in (START, END):
        text = json.dumps(offset).encode()
        asked.write(struct.pack("!i", len(text)) + text)
    asked.seek(0)
    source = cast(DataSource, None)  # named in errors about tuples only
    runner.partitions_func(reader, source, SCHEMA, 10_000, asked, answered)
    answered.seek(0)
    assert number_in(answered) == 1
    partition = pickle.loads(answered.read(number_in(answered)))
    status = number_in(answered)
    rows: list[int] = []
    if status == runner.NON_EMPTY_PYARROW_RECORD_BATCHES:
        assert number_in(answered) == SpecialLengths.START_ARROW_STREAM
        with pa.ipc.open_stream(answered) as stream:
            rows = stream.read_all()["n"].to_pylist()
    return partition.value, status, rows


def test_pyspark_takes_rows_as_they_are_handed_over(caplog: pytest.LogCaptureFixture) -> None:
    assert prefetched_rows.is_available()
    assert not caplog.records


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_another_pyspark_is_noticed_in_one_line(
    change: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    change(monkeypatch)
    with caplog.at_level(logging.WARNING):
        assert not prefetched_rows.is_available()
        assert not prefetched_rows.is_available()
    [line] = caplog.messages
    assert line.startswith("Small micro-batches are read by tasks, which takes longer: this ")
    assert line.endswith(".")


def test_rows_go_with_the_input_partition_once() -> None:
    reader = Reader()
    reader.rows = [numbers(1, 2), numbers(3)]
    handed_over = runner.NON_EMPTY_PYARROW_RECORD_BATCHES
    assert ask(reader) == ((0, 3), handed_over, [1, 2, 3])
    assert type(reader) is Reader, "Spark asks another kind for other things"
    assert set(vars(reader)) == {"rows"}, "the rows are let go of"
    reader.rows = [numbers(4)]
    assert ask(reader) == ((0, 3), handed_over, [4])


def test_without_rows_tasks_read() -> None:
    reader = Reader()
    assert ask(reader) == ((0, 3), runner.PREFETCHED_RECORDS_NOT_FOUND, [])


def test_no_rows_are_handed_over_too() -> None:
    reader = Reader()
    reader.rows = []  # the offsets of records that compaction took away
    assert ask(reader) == ((0, 3), runner.EMPTY_PYARROW_RECORD_BATCHES, [])
    assert type(reader) is Reader
