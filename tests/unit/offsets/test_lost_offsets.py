"""Offsets that were given up in the middle of a log, as every planner and every count sees them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_logbus.audit.warehouse import Loads
from spark_logbus.client.admin.groups import GroupPosition
from spark_logbus.coordination.groups.offsets import CommittedOffset
from spark_logbus.coordination.mirrors import MirroredTopic, PlannedRound, Point
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.datasource.lag import behind
from spark_logbus.datasource.micro_batch import plan_micro_batch, replay
from spark_logbus.datasource.stream_offset import StreamOffset
from spark_logbus.errors import DataLossError, InvalidRequestError
from spark_logbus.load import Commit, NotInLogError
from spark_logbus.load.plan.ranges import plan as plan_load
from spark_logbus.load.plan.window import WindowBounds, plan_window
from spark_logbus.lost_ends import STEP
from spark_logbus.mirror import PartitionLag
from spark_logbus.mirror.plan import new_records, unreadable
from spark_logbus.mirror.source.source import SourceTopic
from spark_logbus.model import AtOffset, LastRecords, LostOffsets, OffsetRange, TopicPartition
from spark_logbus.offsets.data_loss import AboveEnd, DataLoss, GivenUp
from spark_logbus.offsets.give_up import plan as plan_to_give_up
from spark_logbus.offsets.position import OffsetBound, PerPartition, ShiftBack
from spark_logbus.offsets.resolve import resolve
from spark_logbus.offsets.rewind import plan as plan_rewind
from spark_logbus.offsets.snapshot import Snapshot, Span
from spark_logbus.spark.lag.progress import read_progress

P = TopicPartition("t", 0)
SPAN = Span(10, 1_020, (LostOffsets(100, 1_000),))  # 90 records, the gap, and 20 records
NOW = Snapshot({"t": "id"}, {P: SPAN})


@pytest.mark.parametrize(
    ("offset", "clamped"),
    [(3, 10), (10, 10), (99, 99), (100, 1_000), (999, 1_000), (1_000, 1_000), (1_021, 1_020)],
)
def test_the_next_record_from_an_offset_on(offset: int, clamped: int) -> None:
    assert SPAN.clamp(offset) == clamped


@st.composite
def spans(draw: st.DrawFn) -> Span:
    cuts = sorted(draw(st.sets(st.integers(0, 200), min_size=2, max_size=12)))
    inner = cuts[1:-1]
    pairs = zip(inner[::2], inner[1::2], strict=False)
    return Span(cuts[0], cuts[-1], tuple(LostOffsets(*pair) for pair in pairs))


@given(spans(), st.integers(-20, 220), st.integers(0, 220))
def test_counts_and_pieces_are_those_of_the_offsets_one_by_one(
    span: Span, start: int, length: int
) -> None:
    end = start + length
    there = [offset for offset in range(start, end) if span.lost_at(offset) is None]
    assert span.count(start, end) == len(there)
    assert [at for piece in span.pieces(start, end) for at in range(*piece)] == there
    first = span.clamp(start)
    assert span.lost_at(first) is None
    reached = span.reach(first)
    assert all(span.lost_at(at) is None for at in range(first, reached))
    assert reached == span.end or span.lost_at(reached) is not None
    back = span.back_from(span.end, length)
    if back >= span.start:
        assert span.count(back, span.end) == length


# -- streams --------------------------------------------------------------------------------


def at(offset: int) -> StreamOffset:
    return StreamOffset(start={P: offset}, to={P: offset}, topic_ids={"t": "id"})


def test_a_stream_reads_up_to_the_gap_is_told_and_goes_on_behind_it() -> None:
    before = plan_micro_batch(at(40), NOW)
    assert before.end is not None
    assert (before.end.ranges(), before.findings) == ([OffsetRange(P, 40, 100)], [])
    for position in (100, 500):  # at its edge, and where it had come before the loss
        across = plan_micro_batch(at(position), NOW)
        assert across.end is not None
        assert across.findings == [GivenUp(P, position, 1_000)]
        assert across.end.ranges() == [OffsetRange(P, 1_000, 1_020)]
    after = plan_micro_batch(at(1_005), NOW)
    assert after.findings == []


def test_a_stream_at_the_gap_is_told_before_new_records_come() -> None:
    empty = Snapshot({"t": "id"}, {P: Span(10, 1_000, SPAN.lost)})
    assert plan_micro_batch(at(100), empty).findings == [GivenUp(P, 100, 1_000)]
    assert plan_micro_batch(at(1_000), empty).end is None


def test_a_micro_batch_that_was_planned_before_the_loss_is_repeated_as_far_as_it_is_there() -> None:
    planned = StreamOffset(start={P: 90}, to={P: 120}, topic_ids={"t": "id"})
    assert replay(planned, NOW) == ([OffsetRange(P, 90, 100)], [GivenUp(P, 100, 1_000)])
    planned = StreamOffset(start={P: 110}, to={P: 120}, topic_ids={"t": "id"})
    assert replay(planned, NOW) == ([], [GivenUp(P, 110, 1_000)])
    short = Snapshot({"t": "id"}, {P: Span(10, 80)})
    planned = StreamOffset(start={P: 60}, to={P: 120}, topic_ids={"t": "id"})
    assert replay(planned, short) == ([OffsetRange(P, 60, 80)], [AboveEnd(P, 120, 80)])


def test_an_available_now_run_that_began_before_the_loss_reads_what_is_there() -> None:
    capped = NOW.capped(Snapshot({"t": "id"}, {P: Span(10, 120)}))
    plan = plan_micro_batch(at(40), capped)
    assert plan.end is not None
    assert plan.end.ranges() == [OffsetRange(P, 40, 100)]


# -- counts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("committed", "lag"), [(90, 30), (100, 20), (500, 20), (1_005, 15)])
def test_lag_counts_records_and_not_the_gap(committed: int, lag: int) -> None:
    position = GroupPosition(
        topic_partition=P,
        committed=CommittedOffset(committed, 0, "test", "id", 0),
        high_watermark=1_020,
        state="ok",
        reader=None,
        lost=SPAN.lost,
    )
    assert position.lag == lag
    assert PartitionLag(P, committed, 1_020, None, SPAN.lost).records == lag
    assert sum(each.count for each in behind(NOW, {P: committed})) == lag
    to = {"version": 2, "topics": {}, "to": {"t": {"0": committed}}}
    source = {
        "endOffset": to,
        "latestOffset": {"to": {"t": {"0": 1_020}}, "lost": {"t": {"0": [[100, 1_000]]}}},
    }
    progress = read_progress({"sources": [source], "id": "q", "runId": "r", "batchId": 1})
    assert progress.records_behind() == lag


def test_positions_in_records_pass_over_the_gap() -> None:
    bound = OffsetBound(positions=LastRecords(30), option="startingOffsets")
    assert resolve(bound, NOW).offsets == {P: 90}
    [row] = plan_rewind("g", ShiftBack(15), snapshot=NOW, committed={P: 1_010}).rows
    assert (row.new_offset, row.change) == (95, -15)
    [row] = plan_rewind("g", AtOffset(500), snapshot=NOW, committed={P: 90}).rows
    assert (row.new_offset, row.change) == (1_000, 10)


@pytest.mark.parametrize(
    ("asked", "end", "findings"),
    [(99, 99, []), (100, 100, []), (101, 100, [GivenUp(P, 100, 1_000)]), (1_000, 1_000, [])],
)
def test_a_read_may_end_where_records_are_lost(
    asked: int, end: int, findings: list[DataLoss]
) -> None:
    positions = PerPartition(((P, AtOffset(asked)),))
    found = resolve(OffsetBound(positions=positions, option="endingOffsets", is_end=True), NOW)
    assert (found.offsets, found.findings) == ({P: end}, findings)


# -- loads, mirrors -------------------------------------------------------------------------


def load(end: int, *, allow_gaps: bool = False) -> tuple[int, int]:
    last = Commit(7, "7-abc", "id", (), {0: end}, 6, ())
    [made] = plan_load(NOW, "t", last, allow_gaps=allow_gaps, another_target="another")
    return made.start, made.end


def test_a_load_reads_up_to_the_gap_and_is_told() -> None:
    assert load(40) == (40, 100)
    for end in (100, 500):
        with pytest.raises(DataLossError, match=f"go on at offset {end}.*--allow-gaps"):
            load(end)
        assert load(end, allow_gaps=True) == (1_000, 1_020)
    assert load(1_005) == (1_005, 1_020)


def test_what_was_loaded_and_then_given_up_is_not_reprocessed() -> None:
    loads = Loads({0: [(10, 120), (1_000, 1_010)]})
    with pytest.raises(NotInLogError, match=r"offsets 100 to 119 were loaded.*offset 1,000 on"):
        plan_window(NOW, "t", loads, WindowBounds({P: 50}, {P: 1_010}))
    whole = Loads({0: [(10, 100), (1_000, 1_010)]})
    assert plan_window(NOW, "t", whole, WindowBounds({P: 50}, {P: 1_010})) == [
        OffsetRange(P, 50, 100),
        OffsetRange(P, 1_000, 1_010),
    ]


def test_a_mirror_copies_up_to_the_gap_and_is_told() -> None:
    found = {"t": SourceTopic("t", "id", {}, {0: SPAN})}

    def known(position: int) -> dict[str, MirroredTopic]:
        points = {0: (Point(0, 0), Point(position, position))}
        return {"t": MirroredTopic("id", "copy", "id-2", points)}

    new = new_records(known(40), found, allow_gaps=False)
    assert (new.ranges, new.lost) == ((OffsetRange(P, 40, 100),), ())
    with pytest.raises(DataLossError, match="given up"):
        new_records(known(100), found, allow_gaps=False)
    new = new_records(known(100), found, allow_gaps=True)
    assert new.ranges == (OffsetRange(P, 1_000, 1_020),)
    assert new.lost == (OffsetRange(P, 100, 1_000),)
    planned = PlannedRound(1, 1, {"t": "id"}, (OffsetRange(P, 90, 120), OffsetRange(P, 40, 100)))
    assert unreadable(planned, known(40), found) == [OffsetRange(P, 90, 120)]


# -- the choice -----------------------------------------------------------------------------

AWAY = PartitionState(1, 4, [1], end=70, refused="away")
SHORT = PartitionState(1, 4, [1], end=70, refused="too short", kept_end=50)


@pytest.mark.parametrize(
    ("keep", "kept"), [(None, [None, 50]), (False, [None, None]), (True, None)]
)
def test_what_is_there_is_kept_unless_it_is_to_be_set_aside(
    keep: bool | None, kept: list[int | None] | None
) -> None:
    states = {0: AWAY, 1: SHORT}
    if kept is None:
        with pytest.raises(InvalidRequestError, match="Of t-0 there is no log"):
            plan_to_give_up("t", "id", states, {}, keep=keep)
        made = plan_to_give_up("t", "id", states, {}, keep=keep, only=[1])
        assert [row.kept_end for row in made.rows] == [50]
    else:
        made = plan_to_give_up("t", "id", states, {}, keep=keep)
        assert [row.kept_end for row in made.rows] == kept
    assert {row.go_on_at for row in made.rows} == {2 * STEP}
