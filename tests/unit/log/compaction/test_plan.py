from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from spark_logbus.errors import ConfigError
from spark_logbus.log import OS_FILES, LogConfig
from spark_logbus.log.checkpoint import CleanedUpTo, read_cleanings, write_cleanings
from spark_logbus.log.compaction.plan import (
    delete_horizon,
    group,
    record_cleaning,
    select,
)
from spark_logbus.log.segment.index import Summary

NOW_MS = 1_000_000


def segment(base: int, size: int, *, first: int = 500, last: int = 400) -> Summary:
    """Ten offsets; ages of the first and the last append in ms."""
    return Summary(
        base, base + 10, size, NOW_MS * 1000, (NOW_MS - first) * 1000, (NOW_MS - last) * 1000
    )


THREE = [segment(0, 100), segment(10, 200), segment(20, 300, first=300, last=200)]


@pytest.mark.parametrize(
    ("dirty", "min_lag", "max_lag", "expected"),
    [
        (0, 0, None, (3, 0, 600, False)),
        (10, 0, None, (3, 100, 500, False)),
        (15, 0, None, (3, 100, 500, False)),  # in the middle of a segment: all of it is dirty
        (30, 0, None, (3, 600, 0, False)),
        (0, 400, None, (2, 0, 300, False)),  # the third is too young
        (0, 401, None, (0, 0, 0, False)),
        (20, 10_000, None, (2, 300, 0, False)),  # the clean part has no age
        (0, 0, 500, (3, 0, 600, True)),
        (0, 0, 501, (3, 0, 600, False)),
        (20, 0, 301, (3, 300, 300, False)),  # only what is dirty can be overdue
        (20, 0, 300, (3, 300, 300, True)),
    ],
)
def test_selection(
    dirty: int, min_lag: int, max_lag: int | None, expected: tuple[int, int, int, bool]
) -> None:
    found = select(
        THREE,
        first_dirty_offset=dirty,
        now_us=NOW_MS * 1000,
        min_lag_ms=min_lag,
        max_lag_ms=max_lag,
    )
    assert (found.count, found.clean_bytes, found.dirty_bytes, found.overdue) == expected


def test_the_ratio_is_of_bytes() -> None:
    found = select(
        THREE, first_dirty_offset=20, now_us=NOW_MS * 1000, min_lag_ms=0, max_lag_ms=None
    )
    assert found.dirty_ratio == 0.5
    nothing = select([], first_dirty_offset=0, now_us=0, min_lag_ms=0, max_lag_ms=None)
    assert nothing.dirty_ratio == 0.0


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([5], [[0]]),
        ([50], [[0]]),  # larger than allowed, by itself
        ([4, 6, 1], [[0, 1], [2]]),
        ([4, 7, 3], [[0], [1, 2]]),
        ([1] * 12, [list(range(10)), [10, 11]]),
        ([50, 1, 50], [[0], [1], [2]]),
    ],
)
def test_groups_are_no_larger_than_a_segment(sizes: list[int], expected: list[list[int]]) -> None:
    segments = [segment(number * 10, size) for number, size in enumerate(sizes)]
    assert [list(run) for run in group(segments, segment_bytes=10)] == expected


def test_groups_end_where_offsets_were_lost() -> None:
    segments = [segment(0, 1), segment(10, 1), segment(25, 1), segment(35, 1), segment(50, 1)]
    assert [list(run) for run in group(segments, segment_bytes=1000)] == [[0, 1], [2, 3], [4]]


def test_groups_fit_the_offset_deltas() -> None:
    ends = [0, 1 << 30, (1 << 31) - 1, 1 << 31, (1 << 31) + 10]
    segments = [Summary(a, b, 1, 0, 0, 0) for a, b in pairwise(ends)]
    assert [list(run) for run in group(segments, segment_bytes=1000)] == [[0, 1], [2, 3]]


def at(offset: int, ms: int) -> CleanedUpTo:
    return CleanedUpTo(offset, ms * 1000)


@pytest.mark.parametrize(
    ("history", "now", "expected"),
    [
        ([], 1000, 0),
        ([at(50, 901)], 1000, 0),
        ([at(50, 900)], 1000, 50),
        ([at(50, 100), at(70, 900), at(90, 950)], 1000, 70),
        ([at(50, 2000)], 1000, 0),  # the clock was set back
    ],
)
def test_tombstones_go_where_a_cleaning_is_old_enough(
    history: list[CleanedUpTo], now: int, expected: int
) -> None:
    assert delete_horizon(history, now_us=now * 1000, delete_retention_ms=100) == expected


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([], [at(99, 1600)]),
        ([at(10, 1), at(20, 2)], [at(20, 2), at(99, 1600)]),  # of old ones the last is enough
        ([at(10, 1595), at(20, 1599)], [at(10, 1595), at(99, 1600)]),  # close to each other
        ([at(10, 1500), at(20, 1595)], [at(10, 1500), at(20, 1595), at(99, 1600)]),
        ([at(10, 1000), at(20, 2000)], [at(10, 1000), at(99, 1600)]),  # from the future
        ([at(10, 1000), at(100, 1590)], [at(10, 1000), at(99, 1600)]),
    ],
)
def test_the_history_is_thinned(history: list[CleanedUpTo], expected: list[CleanedUpTo]) -> None:
    assert list(record_cleaning(history, at(99, 1600), delete_retention_ms=1000)) == expected


def test_the_history_stays_short_and_tombstones_go_in_time() -> None:
    history: tuple[CleanedUpTo, ...] = ()
    retention, step = 1600, 100
    for ms in range(0, 50_000, 7):
        history = record_cleaning(history, at(ms, ms), delete_retention_ms=retention)
        assert len(history) <= 20
        end = delete_horizon(history, now_us=ms * 1000, delete_retention_ms=retention)
        assert end <= max(0, ms - retention)
        assert end >= ms - retention - 2 * step
        assert history[-1].offset == ms


def test_the_history_is_kept_in_a_checked_file(tmp_path: Path) -> None:
    history = (at(5, 10), at(9, 20))
    assert read_cleanings(OS_FILES, tmp_path) == ()
    write_cleanings(OS_FILES, tmp_path, history)
    assert read_cleanings(OS_FILES, tmp_path) == history
    path = tmp_path / "compaction"
    path.write_bytes(path.read_bytes().replace(b"9 2", b"9 3"))
    assert read_cleanings(OS_FILES, tmp_path) == ()


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("delete", "delete"),
        ("compact", "compact"),
        ("compact,delete", "compact,delete"),
        ("delete, compact", "compact,delete"),
    ],
)
def test_policies(text: str, policy: str) -> None:
    config = LogConfig.from_topic_config({"cleanup.policy": text}, LogConfig())
    assert config.cleanup_policy == policy
    assert (config.compacts, config.deletes) == ("compact" in text, "delete" in text)


def test_the_keys_of_compaction() -> None:
    config = LogConfig.from_topic_config(
        {
            "min.cleanable.dirty.ratio": "0.25",
            "min.compaction.lag.ms": "5",
            "max.compaction.lag.ms": "6",
            "delete.retention.ms": "7",
        },
        LogConfig(),
    )
    assert config == LogConfig(
        min_cleanable_dirty_ratio=0.25,
        min_compaction_lag_ms=5,
        max_compaction_lag_ms=6,
        delete_retention_ms=7,
    )
    assert LogConfig().cleanup_policy == "delete"


def test_a_log_rolls_in_time_to_be_compacted() -> None:
    config = LogConfig(segment_ms=1000, max_compaction_lag_ms=10)
    assert config.roll_ms == 1000
    assert LogConfig(**{**vars(config), "cleanup_policy": "compact"}).roll_ms == 10


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("cleanup.policy", "compcat", "did you mean compact?"),
        ("cleanup.policy", "", "use delete or compact or compact,delete"),
        ("cleanup.polcy", "compact", "did you mean cleanup.policy?"),
        ("min.cleanable.dirty.ratio", "half", "number from 0 to 1"),
        ("min.cleanable.dirty.ratio", "1.5", "number from 0 to 1"),
        ("min.cleanable.dirty.ratio", "nan", "number from 0 to 1"),
        ("delete.retention.ms", "-1", "at least 0"),
        ("max.compaction.lag.ms", "0", "at least 1 (or -1 for none)"),
    ],
)
def test_mistakes_are_named(key: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LogConfig.from_topic_config({key: value}, LogConfig())
    assert said in str(caught.value)


def test_lags_that_contradict_each_other() -> None:
    lags = {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"}
    with pytest.raises(ConfigError, match="below min_compaction_lag_ms"):
        LogConfig.from_topic_config(lags, LogConfig())
