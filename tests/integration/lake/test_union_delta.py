"""The union of a Delta table that others change, and the log."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_logbus.load import DeltaTable, WarehouseError
from tests.integration.lake.loaded_target import LoadedTarget, rows
from tests.servers.cluster import Logbus

pytestmark = pytest.mark.long


@pytest.fixture
def delta(spark: SparkSession, logbus: Logbus, tmp_path: Path) -> LoadedTarget:
    return LoadedTarget(spark, logbus, DeltaTable(str(tmp_path / "table")))


def handle(job: LoadedTarget) -> deltalake.DeltaTable:
    assert isinstance(job.target, DeltaTable)
    return deltalake.DeltaTable(job.target.uri)


def test_rows_of_another_writer_are_no_part_of_it(delta: LoadedTarget) -> None:
    delta.produce_numbers(2)
    delta.load()
    foreign = pa.table({"value": [b"foreign"], "partition": pa.array([None], pa.int32())})
    deltalake.write_deltalake(handle(delta), foreign, mode="append", schema_mode="merge")
    assert delta.table().count() == 5
    delta.produce_numbers(1)
    delta.check_whole(delta.union(), least={0: 3, 1: 3})


def test_a_frame_keeps_to_the_version_that_it_was_made_of(delta: LoadedTarget) -> None:
    """A compaction and a window that is read again leave it as it is."""
    delta.decoding = {"json_schema": "n int"}
    delta.produce_numbers(2)
    delta.load()
    delta.produce_numbers(1)
    delta.load()
    frame = delta.union()
    delta.load(compact=2)
    delta.reprocess({"0": 0, "1": 0})
    assert handle(delta).version() > 3
    delta.check_whole(frame, least={0: 3, 1: 3})


def test_only_the_columns_that_are_wanted_are_read(delta: LoadedTarget) -> None:
    delta.decoding = {"json_schema": "n int"}
    delta.produce_numbers(2)
    delta.load()
    delta.produce_numbers(1)
    found = delta.union(columns=["n"])
    assert found.columns == ["n"]
    assert sorted(row[0] for row in found.collect()) == [0, 0, 1, 1, 2, 2]


def test_a_table_that_was_set_back_is_not_read_as_if_nothing_were_missing(
    delta: LoadedTarget,
) -> None:
    delta.produce_numbers(2)
    delta.load()
    before = handle(delta).version()
    delta.produce_numbers(1)
    delta.load()
    handle(delta).restore(before)
    with pytest.raises(WarehouseError, match="was set back to its version"):
        delta.union()


def test_a_table_that_was_there_before_its_first_load_has_no_history(
    delta: LoadedTarget, tmp_path: Path
) -> None:
    empty = pa.schema(
        {
            "offset": pa.int64(),
            "partition": pa.int32(),
            "n": pa.int64(),
        }
    ).empty_table()
    deltalake.write_deltalake(str(tmp_path / "table"), empty)
    delta.decoding = {"json_schema": "n int", "dead_letters": True}
    delta.produce_numbers(2)
    history, stream = delta.stream()
    assert rows(history) == []
    assert [each.dataType.simpleString() for each in stream.schema] == ["bigint", "int", "bigint"]
    assert rows(delta.union()) == [(n, partition, n) for partition in (0, 1) for n in (0, 1)]
