"""Committing progress: forward only, and not against a rewind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from spark_logbus.coordination.groups.offsets import CommittedOffset, GroupOffsets
from spark_logbus.coordination.groups.rewinds import GroupRewinds, Rewind
from spark_logbus.coordination.groups.topic_owners import GroupOwnership
from spark_logbus.errors import ClaimLostError, GroupRewoundError
from spark_logbus.model import RewindMark, TopicPartition
from spark_logbus.offsets.data_loss import TopicRecreated, of_current_topics
from spark_logbus.spark.group import GroupCommitter

T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)


class FakeOffsets:
    def __init__(self) -> None:
        self.commits: list[tuple[Mapping[TopicPartition, int], dict[str, Any]]] = []
        self.epoch = 0
        self.taken_over = False

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], **how: Any) -> None:
        if self.taken_over:
            raise ClaimLostError("taken over")
        if how["expected_mark"].epoch != self.epoch:
            raise GroupRewoundError("rewound")
        self.commits.append((offsets, how))


class FakeOwnership:
    def __init__(self) -> None:
        self.held: set[str] = set()

    def acquire(self, topics: set[str]) -> None:
        self.held |= topics


class FakeRewinds:
    def history(self, group: str) -> list[Rewind]:
        return [
            Rewind(1, {T0: 5, U0: 9}, "", 0, ""),
            Rewind(3, {T0: 7}, "", 0, ""),
            Rewind(2, {T0: 6}, "", 0, ""),
        ]


def progress(offsets: FakeOffsets, ownership: FakeOwnership | None = None) -> GroupCommitter:
    return GroupCommitter(
        cast(GroupOffsets, offsets),
        cast(GroupRewinds, FakeRewinds()),
        cast(GroupOwnership, ownership or FakeOwnership()),
        group="g",
        by="test",
    )


def test_what_is_committed_already_is_not_written_again() -> None:
    offsets = FakeOffsets()
    group = progress(offsets)
    for position in (3, 3, 4, 4):
        assert group.commit({T0: position}, topic_ids={"t": "id"}, mark=RewindMark(0))
    assert [dict(written) for written, _ in offsets.commits] == [{T0: 3}, {T0: 4}]
    how = offsets.commits[0][1]
    assert how["allow_backward"] is False
    assert how["topic_ids"] == {"t": "id"}


def test_a_rewound_group_keeps_its_rewind() -> None:
    offsets = FakeOffsets()
    group = progress(offsets)
    offsets.epoch = 1
    assert not group.commit({T0: 3}, topic_ids={}, mark=RewindMark(0))
    assert group.commit({T0: 3}, topic_ids={}, mark=RewindMark(1))


def test_who_lost_the_group_is_told_so() -> None:
    offsets = FakeOffsets()
    group = progress(offsets)
    offsets.taken_over = True
    for _ in range(2):
        with pytest.raises(ClaimLostError):
            group.commit({T0: 3}, topic_ids={}, mark=RewindMark(0))


def test_topics_are_held_before_they_are_committed() -> None:
    ownership = FakeOwnership()
    progress(FakeOffsets(), ownership).commit({T0: 3, U0: 4}, topic_ids={}, mark=RewindMark(0))
    assert ownership.held == {"t", "u"}


def test_rewinds_are_folded_the_latest_wins() -> None:
    group = progress(FakeOffsets())
    assert group.rewound(after=RewindMark(0), up_to=RewindMark(3)) == {T0: 7, U0: 9}
    assert group.rewound(after=RewindMark(0), up_to=RewindMark(2)) == {T0: 6, U0: 9}
    assert group.rewound(after=RewindMark(1), up_to=RewindMark(3)) == {T0: 7}
    assert group.rewound(after=RewindMark(3), up_to=RewindMark(3)) == {}


def test_rewinds_of_a_recreated_group_are_followed() -> None:
    class Anew:
        def history(self, group: str) -> list[Rewind]:
            return [
                Rewind(1, {T0: 5, U0: 9}, "", 0, "", token="c"),
                Rewind(2, {T0: 6}, "", 0, "", token="d"),
            ]

    group = GroupCommitter(
        cast(GroupOffsets, FakeOffsets()),
        cast(GroupRewinds, Anew()),
        cast(GroupOwnership, FakeOwnership()),
        group="g",
        by="test",
    )
    last = RewindMark(2, "d")
    for before in (RewindMark(1, "a"), RewindMark(2, "b"), RewindMark(7, "a"), RewindMark(0)):
        assert group.rewound(after=before, up_to=last) == {T0: 6, U0: 9}
    for same in (RewindMark(1, "c"), RewindMark(1)):
        assert group.rewound(after=same, up_to=last) == {T0: 6}


def test_offsets_of_an_earlier_topic_of_that_name_do_not_count() -> None:
    def committed(topic_id: str | None) -> CommittedOffset:
        return CommittedOffset(offset=4, committed_at_us=0, actor="", topic_id=topic_id)

    mine = {T0: committed("old"), U0: committed(None), TopicPartition("gone", 0): committed("x")}
    offsets, findings = of_current_topics(mine, {"t": "new", "u": "id"})
    assert offsets == {U0: 4}
    assert findings == [TopicRecreated("t", "old", "new")]
