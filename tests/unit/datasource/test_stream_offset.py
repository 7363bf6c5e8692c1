"""The offset in the checkpoint: stable text, old versions read, newer ones refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_logbus.datasource.stream_offset import UNRESOLVED, StreamOffset
from spark_logbus.errors import InvalidRequestError, UnsupportedVersionError
from spark_logbus.model import OffsetRange, RewindMark, TopicPartition

B0, A2, A10 = TopicPartition("b", 0), TopicPartition("a", 2), TopicPartition("a", 10)

# Both must be readable for ever.
STORED = (
    '{"version": 2, "from": {"a": {"2": 1, "10": 0}, "b": {"0": 5}}, '
    '"to": {"a": {"2": 4, "10": 0}, "b": {"0": 9}}, '
    '"topics": {"a": "id-a", "b": "id-b"}, "rewind_epoch": 0}'
)
STORED_BY_VERSION_1 = (
    '{"version": 1, "from": {"a": {"2": 1, "10": 0}, "b": {"0": 5}}, '
    '"to": {"a": {"2": 4, "10": 0}, "b": {"0": 9}}, '
    '"topics": {"a": "id-a", "b": "id-b"}, "group": "g", "generation": 3, "rewind": "9a41"}'
)


def offset(**changes: Any) -> StreamOffset:
    fields: dict[str, Any] = {
        "start": {B0: 5, A10: 0, A2: 1},
        "to": {A10: 0, B0: 9, A2: 4},
        "topic_ids": {"b": "id-b", "a": "id-a"},
    }
    return StreamOffset(**{**fields, **changes})


def test_text_is_stable_whatever_the_order_of_insertion() -> None:
    assert json.dumps(offset().to_json()) == STORED


def test_stored_text_reads_back_and_stays_the_same() -> None:
    stored = json.loads(STORED)
    assert StreamOffset.from_json(stored) == offset()
    assert json.dumps(StreamOffset.from_json(stored).to_json()) == STORED


def test_what_version_1_stored_means_the_same() -> None:
    assert StreamOffset.from_json(json.loads(STORED_BY_VERSION_1)) == offset(
        group="g", mark=RewindMark(3, "9a41")
    )
    assert StreamOffset.from_json({"version": 1, "unresolved": True}) is UNRESOLVED


@pytest.mark.parametrize("mark", [RewindMark(3, "9a41"), RewindMark(3)])
def test_group_and_rewind_round_trip(mark: RewindMark) -> None:
    made = offset(group="g", mark=mark)
    assert StreamOffset.from_json(json.loads(json.dumps(made.to_json()))) == made
    assert ("rewind" in made.to_json()) == bool(mark.token)


def test_the_unresolved_start() -> None:
    assert UNRESOLVED.to_json() == {"version": 2, "unresolved": True}
    assert StreamOffset.from_json({"version": 2, "unresolved": True}) is UNRESOLVED


def test_ranges_are_from_the_offset_alone_and_not_empty() -> None:
    assert offset().ranges() == [OffsetRange(A2, 1, 4), OffsetRange(B0, 5, 9)]


def test_a_newer_version_is_refused() -> None:
    with pytest.raises(UnsupportedVersionError, match="version 3, this release reads up to 2"):
        StreamOffset.from_json({"version": 3, "whatever": 1})


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"topic": {"0": 5}},  # a Kafka source's offset
        {"version": "1"},
        {"version": 1, "from": {}, "to": {}},
        {"version": 1, "from": {"a": 1}, "to": {}, "topics": {}, "generation": 0},
        {"version": 1, "from": {}, "to": {"a": {"0": 5}}, "topics": {}, "generation": 0},
        {"version": 1, "from": {}, "to": {"a": {"x": 5}}, "topics": {}, "generation": 0},
        {"version": 1, "from": {}, "to": {}, "topics": {}, "rewind_epoch": 0},
        {"version": 2, "from": {}, "to": {}, "topics": {}, "generation": 0},
    ],
)
def test_what_is_no_offset_of_ours_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="checkpoint"):
        StreamOffset.from_json(value)
