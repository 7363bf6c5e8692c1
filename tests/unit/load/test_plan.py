"""What a load reads next, as a table of cases; and the commit file's round trip."""

from __future__ import annotations

import pytest

from spark_logbus.errors import DataLossError
from spark_logbus.load import Commit, WarehouseError
from spark_logbus.load.commits import newest
from spark_logbus.load.reading import plan
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.offsets.snapshot import Snapshot, Span

ID = "5f0c"


def snapshot(*spans: tuple[int, int]) -> Snapshot:
    return Snapshot(
        {"t": ID}, {TopicPartition("t", p): Span(*span) for p, span in enumerate(spans)}
    )


def commit(ends: dict[int, int], topic_id: str = ID) -> Commit:
    ranges = (OffsetRange(TopicPartition("t", 0), 3, 9),)
    return Commit(7, "7-abc", topic_id, ranges, ends, 6, ("date=2013-01-01/part-0.parquet",))


@pytest.mark.parametrize(
    ("spans", "ends", "expected"),
    [
        ([(0, 10)], None, [(0, 10)]),
        ([(4, 10)], None, [(4, 10)]),  # a first load takes what is there
        ([(0, 10), (0, 0)], {0: 6, 1: 0}, [(6, 10), (0, 0)]),
        ([(0, 10)], {0: 10}, [(10, 10)]),
        ([(0, 10), (0, 5)], {0: 10}, [(10, 10), (0, 5)]),  # a partition added since
    ],
)
def test_a_load_goes_on_where_the_last_ended(
    spans: list[tuple[int, int]], ends: dict[int, int] | None, expected: list[tuple[int, int]]
) -> None:
    last = None if ends is None else commit(ends)
    ranges = plan(snapshot(*spans), "t", last, allow_gaps=False)
    assert [(r.start, r.end) for r in ranges] == expected


def test_records_deleted_before_they_were_loaded_are_reported() -> None:
    with pytest.raises(DataLossError, match="starts at 8: the offsets between were not loaded"):
        plan(snapshot((8, 10)), "t", commit({0: 6}), allow_gaps=False)
    ranges = plan(snapshot((8, 10)), "t", commit({0: 6}), allow_gaps=True)
    assert [(r.start, r.end) for r in ranges] == [(8, 10)]


def test_a_topic_that_was_created_again_is_refused() -> None:
    with pytest.raises(DataLossError, match="deleted and created again since load 7"):
        plan(snapshot((0, 10)), "t", commit({0: 6}, topic_id="other"), allow_gaps=True)


def test_a_log_that_ends_before_the_last_load_is_refused() -> None:
    with pytest.raises(DataLossError, match="now ends at 4"):
        plan(snapshot((0, 4)), "t", commit({0: 6}), allow_gaps=True)


def test_a_commit_file_reads_back() -> None:
    one = commit({0: 9, 1: 0})
    assert Commit.from_json("t", one.to_json()) == one


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 1}', "null"])
def test_a_damaged_commit_file_is_refused(text: str) -> None:
    with pytest.raises(WarehouseError, match="damaged"):
        Commit.from_json("t", text)


def test_a_newer_commit_file_is_refused() -> None:
    with pytest.raises(WarehouseError, match="format 2"):
        Commit.from_json("t", commit({}).to_json().replace('"version": 1', '"version": 2'))


def test_the_newest_commit_is_found_among_other_files() -> None:
    first, tenth = "0" * 19 + "1.json", "0" * 18 + "10.json"
    assert newest([tenth, first, ".tmp", "readme.json", first + ".crc"]) == tenth
    assert newest([]) is None
