"""What a load reads next, as a table of cases; and the commit file's round trip."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from spark_logbus.errors import ConfigError, DataLossError
from spark_logbus.load import Commit, FileFormat, Layout, Period, WarehouseError
from spark_logbus.load.commit import newest
from spark_logbus.load.config import first_start, last_end
from spark_logbus.load.plan.ranges import plan
from spark_logbus.model import (
    AtOffset,
    AtTimestamp,
    Earliest,
    LastDuration,
    LastRecords,
    OffsetRange,
    TopicPartition,
)
from spark_logbus.offsets.position import PerPartition
from spark_logbus.offsets.snapshot import Snapshot, Span

ID = "5f0c"
ELSEWHERE = "another directory"


def snapshot(*spans: tuple[int, int]) -> Snapshot:
    return Snapshot(
        {"t": ID}, {TopicPartition("t", p): Span(*span) for p, span in enumerate(spans)}
    )


def commit(ends: dict[int, int], topic_id: str = ID, layout: Layout | None = None) -> Commit:
    ranges = (OffsetRange(TopicPartition("t", 0), 3, 9),)
    files = ("date=2013-01-01/part-0.parquet",)
    return Commit(7, "7-abc", topic_id, ranges, ends, 6, files, layout=layout or Layout())


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
    ranges = plan(snapshot(*spans), "t", last, allow_gaps=False, another_target=ELSEWHERE)
    assert [(r.start, r.end) for r in ranges] == expected


def test_records_deleted_before_they_were_loaded_are_reported() -> None:
    with pytest.raises(DataLossError, match="starts at 8: the offsets between were not loaded"):
        plan(snapshot((8, 10)), "t", commit({0: 6}), allow_gaps=False, another_target=ELSEWHERE)
    ranges = plan(snapshot((8, 10)), "t", commit({0: 6}), allow_gaps=True, another_target=ELSEWHERE)
    assert [(r.start, r.end) for r in ranges] == [(8, 10)]


def at(*offsets: int) -> dict[TopicPartition, int]:
    return {TopicPartition("t", number): offset for number, offset in enumerate(offsets)}


@pytest.mark.parametrize(
    ("ends", "start", "until", "expected"),
    [
        (None, at(3, 0), {}, [(3, 10), (0, 5)]),
        ({0: 6, 1: 2}, at(3, 0), {}, [(6, 10), (2, 5)]),  # the start is the first load's
        (None, {}, at(7, 2), [(0, 7), (0, 2)]),
        ({0: 6, 1: 2}, {}, at(8, 2), [(6, 8), (2, 2)]),
        ({0: 6, 1: 2}, {}, at(1, 1), [(6, 6), (2, 2)]),  # is in already
        (None, at(8, 0), at(7, 99), [(8, 8), (0, 5)]),
    ],
)
def test_a_load_within_bounds(
    ends: dict[int, int] | None,
    start: dict[TopicPartition, int],
    until: dict[TopicPartition, int],
    expected: list[tuple[int, int]],
) -> None:
    last = None if ends is None else commit(ends)
    given = snapshot((0, 10), (0, 5))
    ranges = plan(
        given, "t", last, allow_gaps=False, another_target=ELSEWHERE, start=start, until=until
    )
    assert [(r.start, r.end) for r in ranges] == expected


@pytest.mark.parametrize(
    ("text", "positions"),
    [
        ("earliest", Earliest()),
        ("-1000", LastRecords(1000)),
        ("-10 minutes", LastDuration(600_000_000)),
        ("1970-01-01T00:00:01Z", AtTimestamp(1_000_000)),
        ("1970-01-01", AtTimestamp(0)),
        ("1000", AtTimestamp(1_000_000)),
        ('{"t": {"0": 23}}', PerPartition(((TopicPartition("t", 0), AtOffset(23)),))),
    ],
)
def test_bounds_are_times_or_positions(text: str, positions: object) -> None:
    assert first_start(text).positions == positions
    assert last_end(text).positions == positions


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("latest", "--from latest would load nothing"),
        ("committed", "--from cannot be committed"),
        ("yesterday", "--from: expected milliseconds since 1970 .* or a moment"),
    ],
)
def test_starts_that_are_refused(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        first_start(text)


def test_dead_letters_are_nothing_for_earlier_releases() -> None:
    one = replace(commit({0: 9}), dead_letters=3)
    assert json.loads(one.to_json())["version"] == 2
    assert Commit.from_json("t", one.to_json()) == one


def test_a_topic_that_was_created_again_is_refused() -> None:
    with pytest.raises(DataLossError, match="deleted and created again since load 7"):
        plan(
            snapshot((0, 10)),
            "t",
            commit({0: 6}, topic_id="other"),
            allow_gaps=True,
            another_target=ELSEWHERE,
        )


def test_a_log_that_ends_before_the_last_load_is_refused() -> None:
    with pytest.raises(DataLossError, match="now ends at 4"):
        plan(snapshot((0, 4)), "t", commit({0: 6}), allow_gaps=True, another_target=ELSEWHERE)


def test_a_commit_file_reads_back() -> None:
    one = commit({0: 9, 1: 0})
    assert Commit.from_json("t", one.to_json()) == one


def test_a_commit_keeps_its_layout() -> None:
    layout = Layout(period=Period.HOUR, columns=("c",), event_time="at", format=FileFormat.ORC)
    one = commit({0: 9}, layout=layout)
    assert Commit.from_json("t", one.to_json()) == one


def test_earlier_releases_go_on_from_what_they_know_alone() -> None:
    """Earlier releases know no layout but by day, and overlook what they do not know."""
    assert json.loads(commit({0: 9}).to_json())["version"] == 1
    assert json.loads(commit({0: 9}, layout=Layout(columns=("c",))).to_json())["version"] == 2


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 1}', "null"])
def test_a_damaged_commit_file_is_refused(text: str) -> None:
    with pytest.raises(WarehouseError, match="damaged"):
        Commit.from_json("t", text)


def test_a_newer_commit_file_is_refused() -> None:
    with pytest.raises(WarehouseError, match="format 3"):
        Commit.from_json("t", commit({}).to_json().replace('"version": 1', '"version": 3'))


def test_the_newest_commit_is_found_among_other_files() -> None:
    first, tenth = "0" * 19 + "1.json", "0" * 18 + "10.json"
    assert newest([tenth, first, ".tmp", "readme.json", first + ".crc"]) == tenth
    assert newest([]) is None
