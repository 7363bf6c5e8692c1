from __future__ import annotations

import pytest

from spark_logbus.log.disk import names as files
from spark_logbus.model import MAX_NAME_LENGTH, TopicPartition


@pytest.mark.parametrize("offset", [0, 7, 1 << 62])
def test_segment_names_round_trip_and_sort_by_offset(offset: int) -> None:
    assert files.parse_segment(files.segment(offset)) == offset
    assert files.parse_index(files.index(offset)) == offset
    assert files.segment(offset) < files.segment(offset + 1)


@pytest.mark.parametrize(
    "name",
    ["", ".log", "1.log", "00000000000000000000.index", "00000000000000000000.log.deleted",
     "0000000000000000000x.log", "00000000000000000000.log\n"],
)  # fmt: skip
def test_other_names_are_no_segments(name: str) -> None:
    assert files.parse_segment(name) is None


@pytest.mark.parametrize("topic", ["a", "a-1", "x-0.stray", "...", "9-9", "a.deleted"])
def test_log_directories_round_trip(topic: str) -> None:
    topic_partition = TopicPartition(topic, 12)
    assert files.parse_log_directory(files.log_directory(topic_partition)) == topic_partition


@pytest.mark.parametrize(
    "name",
    ["", "a", "a-", "-1", "a-01", "a-1.stray", "a-1.deleted", "a-1.creating", "a/b-1", "checkpoint",
     "clean-shutdown"],
)  # fmt: skip
def test_other_directories_hold_no_logs(name: str) -> None:
    assert files.parse_log_directory(name) is None


def test_no_name_is_longer_than_a_file_name_may_be() -> None:
    longest = TopicPartition("t" * MAX_NAME_LENGTH, 99999)
    assert len(files.log_directory(longest)) <= 255
    for name in (
        files.stray_directory("i" * 64, 99999, 999),
        files.deleted_directory("i" * 64, 99999, 999),
        files.creating_directory("i" * 64, 99999),
    ):
        assert len(name) <= 255
        assert files.parse_log_directory(name) is None
    assert len({files.stray_directory("i", 0, n) for n in range(3)}) == 3
