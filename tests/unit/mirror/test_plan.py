"""What a round copies, and names of copies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_logbus.coordination.mirrors import Audited, MirroredTopic, MirrorState, Point
from spark_logbus.errors import ConfigError, DataLossError, TopicRecreatedError
from spark_logbus.mirror.audit import progress_of
from spark_logbus.mirror.config import Renaming
from spark_logbus.mirror.plan import (
    audited,
    closes_round,
    in_turn,
    is_of,
    new_records,
    new_token,
    new_write,
    planned,
    unreadable,
)
from spark_logbus.mirror.source.logbus import shares
from spark_logbus.mirror.source.source import SourceTopic
from spark_logbus.mirror.targets import config_differences
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.offsets.snapshot import Span
from spark_logbus.record.stage_id import MAX_WRITE


def known(**positions: int) -> MirroredTopic:
    return MirroredTopic(
        "id-1", "copy", "id-2",
        {int(each[1:]): (Point(0, 0), Point(at, at)) for each, at in positions.items()},
    )  # fmt: skip


def found(*spans: tuple[int, int], topic_id: str = "id-1") -> SourceTopic:
    return SourceTopic(
        "t", topic_id, {}, {number: Span(*span) for number, span in enumerate(spans)}
    )


def part(number: int, start: int, end: int) -> OffsetRange:
    return OffsetRange(TopicPartition("t", number), start, end)


def test_what_is_new_is_what_lies_beyond_the_copy() -> None:
    new = new_records(
        {"t": known(p0=10, p1=0, p2=7)},
        {"t": found((0, 15), (0, 0), (3, 7))},
        allow_gaps=False,
    )
    assert (new.ranges, new.lost) == ((part(0, 10, 15),), ())


def test_what_was_deleted_before_it_was_copied_is_lost() -> None:
    topics = {"t": found((12, 15), (4, 4))}, {"t": known(p0=10, p1=0)}
    with pytest.raises(DataLossError, match=r"t-0\[10, 12\), t-1\[0, 4\).*--allow-gaps"):
        new_records(topics[1], topics[0], allow_gaps=False)
    new = new_records(topics[1], topics[0], allow_gaps=True)
    assert (new.ranges, new.lost) == ((part(0, 12, 15),), (part(0, 10, 12), part(1, 0, 4)))


def test_a_log_that_ends_before_its_copy_has_lost_records() -> None:
    for allow_gaps in (False, True):
        with pytest.raises(DataLossError, match="ends at 9 in the source, and was copied up to 10"):
            new_records({"t": known(p0=10)}, {"t": found((0, 9))}, allow_gaps=allow_gaps)


def test_a_topic_of_another_id_is_another_topic() -> None:
    with pytest.raises(TopicRecreatedError, match="id id-1, now id-3"):
        new_records({"t": known(p0=10)}, {"t": found((0, 20), topic_id="id-3")}, allow_gaps=True)


def test_all_partitions_have_their_turn() -> None:
    ranges = [part(number, 0, 1) for number in range(5)]
    after: TopicPartition | None = None
    turns = []
    for _ in range(3):
        some = in_turn(ranges, after=after, most=2)
        after = some[-1].topic_partition
        turns.append([each.topic_partition.partition for each in some])
    assert turns == [[0, 1], [2, 3], [4, 0]]


def test_a_plan_is_of_the_topics_that_it_names() -> None:
    topics = {"t": known(p0=1), "another": known(p0=1)}
    plan = planned(7, [part(1, 0, 2), part(0, 0, 1)], topics, token=5)
    assert plan.ranges == (part(0, 0, 1), part(1, 0, 2))
    assert plan.topic_ids == {"t": "id-1"}


@pytest.mark.parametrize(
    ("sizes", "max_bytes", "expected"),
    [
        ([10, 20, 30], 100, [10, 20, 30]),
        ([10, 200, 300], 100, [10, 45, 45]),
        ([100, 100, 100], 90, [30, 30, 30]),
        ([5], 1, [1]),
        ([5, 5], 1, [1, 1]),
    ],
)
def test_small_ranges_get_all_and_large_ones_share(
    sizes: list[int], max_bytes: int, expected: list[int]
) -> None:
    ranges = [part(number, 0, 1) for number in range(len(sizes))]
    given = shares(dict(zip(ranges, sizes, strict=True)), max_bytes=max_bytes)
    assert [given[each] for each in ranges] == expected


def test_copies_are_named_by_a_template() -> None:
    assert Renaming().targets(["a", "b"]) == {"a": "a", "b": "b"}
    assert Renaming("from-x.{topic}").target("a") == "from-x.a"


@pytest.mark.parametrize("template", ["copy", "{topic}{topic}", ""])
def test_a_template_has_the_topic_in_it_once(template: str) -> None:
    with pytest.raises(ConfigError, match=r"write \{topic\} in it, once"):
        Renaming(template)


@pytest.mark.parametrize("template", ["a/{topic}", "{topic}" + "x" * 250])
def test_a_copy_cannot_have_a_name_that_no_topic_has(template: str) -> None:
    with pytest.raises(ConfigError, match="The topic 't' cannot be named so"):
        Renaming(template).target("t")


def test_configurations_differ_by_key() -> None:
    assert config_differences({"a": "1", "b": "2"}, {"b": "3", "c": "4", "a": "1"}) == {
        "b": ("2", "3"),
        "c": (None, "4"),
    }


@pytest.mark.parametrize(
    ("topics", "gone"),
    [
        ({"t": found((0, 20))}, False),
        ({"t": found((5, 10))}, False),
        ({"t": found((6, 20))}, True),  # retention
        ({"t": found((0, 9))}, True),  # a log that was lost
        ({"t": found()}, True),
        ({}, True),
        ({"t": found((0, 20), topic_id="id-3")}, True),
    ],
)
def test_a_plan_that_cannot_be_read_is_known(topics: dict[str, SourceTopic], gone: bool) -> None:
    entries = {"t": known(p0=5)}
    plan = planned(7, [part(0, 5, 10)], entries, token=5)
    assert unreadable(plan, entries, topics) == ([part(0, 5, 10)] if gone else [])
    assert unreadable(plan, {}, topics) == [part(0, 5, 10)]


@pytest.mark.parametrize("closes", [False, True])
def test_a_writes_number_tells_its_plan(closes: bool) -> None:
    token = new_token()
    write = new_write(token, closes=closes)
    assert 0 <= write <= MAX_WRITE
    assert is_of(write, token)
    assert not is_of(write, token ^ 1)
    assert closes_round(write) is closes


NEW = MirroredTopic("id-1", "copy", "id-2", {0: (Point(5, 0),), 1: (Point(0, 0),)})


@pytest.mark.parametrize(
    ("entry", "audit", "since"),
    [
        (NEW, True, Audited(7, 0)),
        (known(p0=10), True, Audited(7, 99)),
        (replace(known(p0=10), audited=Audited(3, 55)), True, Audited(3, 55)),
        (replace(known(p0=10), audited=Audited(3, 55)), False, None),
    ],
)
def test_a_topic_is_audited_since_nothing_was_copied_uncounted(
    entry: MirroredTopic, audit: bool, since: Audited | None
) -> None:
    assert audited({"t": entry}, 7, audit=audit, looked_us=99)["t"].audited == since


@pytest.mark.parametrize(
    ("ranges", "done"),
    [
        ([], 7),  # all is noted
        ([part(0, 10, 15)], 6),
        ([part(0, 5, 10)], 7),  # the topic's node is, the round is not
    ],
)
def test_a_topic_has_come_as_far_as_is_noted(ranges: list[OffsetRange], done: int) -> None:
    topics = {"t": known(p0=10)}
    state = MirrorState("s", planned(7, ranges, topics, token=1), topics)
    assert progress_of(state, "t").number == done
