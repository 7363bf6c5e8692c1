"""Records split by partition, files shared out to tasks, marks of loads."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs as pafs
from pyarrow import parquet as pq

from spark_logbus.load.lake.delta.files import DeltaWriter
from spark_logbus.load.lake.delta.storage import DeltaStorage
from spark_logbus.load.lake.marks import Mark, OwnDirectory, new_mark
from spark_logbus.load.lake.reading import may_hold, shared_out
from spark_logbus.load.lake.table import LakeFile, Progress
from spark_logbus.load.lake.writing import TaskFiles, conformed, split
from spark_logbus.model import OffsetRange, TopicPartition

_VALUES = st.sampled_from(["", "a", "b/%", None])


@given(rows=st.lists(st.tuples(_VALUES, st.sampled_from([1, 2, None])), min_size=1))
def test_each_record_goes_to_its_partition_once(rows: list[tuple[str | None, int | None]]) -> None:
    names, days = zip(*rows, strict=True)
    batch = pa.record_batch(
        {"k": pa.array(names, pa.string()), "d": pa.array(days, pa.int32()), "n": range(len(rows))}
    )
    found = dict(split(batch, ("k", "d")))
    assert len(found) == len(set(rows))
    for values, own in found.items():
        numbers = own.column("n").to_pylist()
        assert numbers == [n for n, row in enumerate(rows) if row == values]


def test_without_partitions_a_batch_stays_whole() -> None:
    batch = pa.record_batch({"n": [1, 2]})
    assert [*split(batch, ())] == [((), batch)]


def test_a_part_that_waits_keeps_no_other_rows_in_memory() -> None:
    rows = pa.record_batch({"k": ["rare", *["usual"] * 999], "x": ["x" * 1_000] * 1_000})
    parts = dict(split(rows, ("k",)))
    assert parts["rare",].get_total_buffer_size() < 10_000


def test_a_task_opens_no_file_for_each_partition(tmp_path: Path) -> None:
    """A batch of 1,000 partitions, of which a process could not open a file each."""
    storage = DeltaStorage.of(str(tmp_path), {})
    schema = pa.schema({"partition": pa.int32(), "offset": pa.int64()})
    files = TaskFiles(DeltaWriter(storage, schema, ("k",), ()), "1-ab", "snappy")
    numbers = [*range(1_000)]
    rows = pa.record_batch(
        {
            "partition": pa.array([0] * 1_000, pa.int32()),
            "offset": pa.array(numbers, pa.int64()),
            "k": pa.array(numbers, pa.int64()),
        }
    )
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 100, usual[1]))
    try:
        files.add(rows)
        files.add(rows)
        written = files.end()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)
    assert len(written) == 1_000
    footers = [pq.read_metadata(pa.BufferReader(file["footer"])) for file in written]
    assert [footer.num_rows for footer in footers] == [2] * 1_000
    assert files.tally.records == 2_000


def test_columns_are_taken_by_name_and_cast() -> None:
    batch = pa.record_batch({"x": [1], "at": pa.array([5], pa.timestamp("us", "Asia/Kolkata"))})
    schema = pa.schema(
        [
            pa.field("at", pa.timestamp("us", "UTC")),
            pa.field("x", pa.int32(), metadata={"PARQUET:field_id": "7"}),
        ]
    )
    made = conformed(batch, schema)
    assert made.schema.equals(schema, check_metadata=True)
    assert made.column("x").to_pylist() == [1]


def file(path: str, size: int = 1) -> LakeFile:
    return LakeFile(path, size, 1)


def test_files_are_shared_out_evenly() -> None:
    files = [file(f"{number:02}", 1 << 20) for number in range(10)]
    shares = shared_out(files, least=4)
    assert sorted(len(share) for share in shares) == [2, 2, 3, 3]
    assert sorted(each.path for share in shares for each in share) == [f.path for f in files]
    assert shared_out(files[:1], least=4) == [files[:1]]
    large = [file(f"{number}", 1 << 30) for number in range(10)]
    assert len(shared_out(large, least=2)) == 10


@pytest.mark.parametrize(
    ("partitions", "offsets", "may"),
    [
        (None, None, True),
        ((0, 0), (5, 9), True),
        ((0, 0), (10, 12), False),
        ((0, 0), (0, 4), False),
        ((1, 2), (5, 9), False),
        ((0, 3), None, True),
        (None, (9, 9), True),
    ],
)
def test_files_that_cannot_hold_a_window(
    partitions: tuple[int, int] | None, offsets: tuple[int, int] | None, may: bool
) -> None:
    window = [OffsetRange(TopicPartition("t", 0), 5, 10)]
    assert may_hold(LakeFile("a", 1, 1, (), partitions, offsets), window) is may


def test_a_mark_is_read_back_and_one_that_is_cut_off_names_its_load(tmp_path: Path) -> None:
    own = OwnDirectory(pafs.LocalFileSystem(), str(tmp_path / "t" / "_logbus"), "t")
    assert own.marks() == []
    mark = new_mark(7)
    full = Mark(mark.staging, 7, ("a.parquet",), (OffsetRange(TopicPartition("t", 0), 1, 2),))
    own.write(mark)
    own.write(full)
    assert own.marks() == [full]
    path = tmp_path / "t" / "_logbus" / f"{mark.staging}.json"
    path.write_text(path.read_text()[:20])
    (path.parent / "other.json").write_text("{}")
    assert own.marks() == [mark]
    assert 0 <= mark.token < 1 << 63

    (tmp_path / "t" / "date=1").mkdir()
    gone = tmp_path / "t" / "date=1" / f"{mark.prefix}x-0.parquet"
    kept = tmp_path / "t" / "date=1" / "part-other-0.parquet"
    gone.touch()
    kept.touch()
    own.delete_files(mark)
    own.delete(mark)
    own.delete(mark)
    assert (gone.exists(), kept.exists(), own.marks()) == (False, True, [])


def test_spans_grow_and_gaps_stay() -> None:
    first = Progress("id", 0, 0, {}).after(1, 11, [_range(0, 0, 5)], {0: 5, 1: 0})
    second = first.after(2, 12, [_range(0, 5, 8), _range(1, 3, 4)], {0: 8, 1: 4})
    third = second.after(3, 13, [_range(0, 10, 11)], {0: 11})
    assert third.spans == {0: [(0, 8), (10, 11)], 1: [(3, 4)]}
    assert third.ends == {0: 11, 1: 4}
    assert (third.number, third.token) == (3, 13)
    assert first.spans == {0: [(0, 5)]}


def _range(partition: int, start: int, end: int) -> OffsetRange:
    return OffsetRange(TopicPartition("t", partition), start, end)
