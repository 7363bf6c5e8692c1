"""The next micro-batch, as a table of situations."""

from __future__ import annotations

from spark_logbus.datasource.micro_batch import GroupView, plan_micro_batch, replay
from spark_logbus.datasource.stream_offset import StreamOffset
from spark_logbus.model import OffsetRange, RewindMark, TopicPartition
from spark_logbus.offsets.data_loss import (
    AboveEnd,
    BelowLogStart,
    PartitionGone,
    TopicGone,
    TopicRecreated,
)
from spark_logbus.offsets.snapshot import Snapshot, Span

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
IDS = {"t": "id"}


def last(
    to: dict[TopicPartition, int], ids: dict[str, str] | None = None, epoch: int = 0
) -> StreamOffset:
    return StreamOffset(start=to, to=to, topic_ids=ids or IDS, mark=RewindMark(epoch))


def snapshot(
    spans: dict[TopicPartition, tuple[int, int]], ids: dict[str, str] | None = None
) -> Snapshot:
    return Snapshot(
        ids or IDS, {topic_partition: Span(*span) for topic_partition, span in spans.items()}
    )


def test_nothing_new() -> None:
    plan = plan_micro_batch(last({T0: 5, T1: 0}), snapshot({T0: (0, 5), T1: (0, 0)}))
    assert plan.end is None
    assert plan.findings == []


def test_new_records() -> None:
    plan = plan_micro_batch(last({T0: 5, T1: 2}), snapshot({T0: (0, 8), T1: (0, 2)}))
    assert plan.end is not None
    assert plan.end.start == {T0: 5, T1: 2}
    assert plan.end.to == {T0: 8, T1: 2}


def test_what_is_more_than_new_records() -> None:
    assert not plan_micro_batch(last({T0: 5}), snapshot({T0: (0, 8)})).moved
    assert not plan_micro_batch(last({T0: 5}), snapshot({T0: (0, 8), T1: (0, 1)})).moved
    assert plan_micro_batch(last({T0: 5, T1: 1}), snapshot({T0: (0, 8)})).moved
    assert plan_micro_batch(last({T0: 5}), snapshot({T0: (6, 8)})).moved
    assert plan_micro_batch(last({T0: 5}), snapshot({T0: (0, 8)})).records == 3


def test_a_new_partition_starts_at_earliest() -> None:
    plan = plan_micro_batch(last({T0: 5}), snapshot({T0: (0, 5), T1: (0, 3)}))
    assert plan.end is not None
    assert plan.end.ranges() == [OffsetRange(T1, 0, 3)]
    assert plan.findings == []


def test_a_new_partition_without_records_is_nothing_new() -> None:
    assert plan_micro_batch(last({T0: 5}), snapshot({T0: (0, 5), T1: (0, 0)})).end is None


def test_a_new_partition_without_its_first_records_is_data_loss() -> None:
    plan = plan_micro_batch(last({T0: 5}), snapshot({T0: (0, 5), T1: (2, 3)}))
    assert plan.findings == [BelowLogStart(T1, 0, 2)]


def test_a_new_topic_starts_at_earliest() -> None:
    ids = {"t": "id", "u": "id-u"}
    plan = plan_micro_batch(last({T0: 5}), snapshot({T0: (0, 5), U0: (0, 3)}, ids))
    assert plan.end is not None
    assert plan.end.ranges() == [OffsetRange(U0, 0, 3)]
    assert plan.end.topic_ids == ids
    assert plan.findings == []


def test_retention_overtook_the_stream() -> None:
    plan = plan_micro_batch(last({T0: 5}), snapshot({T0: (9, 12)}))
    assert plan.findings == [BelowLogStart(T0, 5, 9)]
    assert plan.end is not None
    assert plan.end.ranges() == [OffsetRange(T0, 9, 12)]


def test_retention_took_everything_and_is_noted_once() -> None:
    plan = plan_micro_batch(last({T0: 5}), snapshot({T0: (9, 9)}))
    assert plan.end is not None
    assert plan.end.ranges() == []
    assert plan_micro_batch(plan.end, snapshot({T0: (9, 9)})).end is None


def test_an_end_that_went_back() -> None:
    plan = plan_micro_batch(last({T0: 5}), snapshot({T0: (0, 3)}))
    assert plan.findings == [AboveEnd(T0, 5, 3)]
    assert plan.end is not None
    assert plan.end.to == {T0: 3}


def test_a_recreated_topic_is_another_topic() -> None:
    plan = plan_micro_batch(last({T0: 5}), snapshot({T0: (0, 9)}, {"t": "new"}))
    assert plan.findings == [TopicRecreated("t", "id", "new")]
    assert plan.end is not None
    assert plan.end.ranges() == [OffsetRange(T0, 0, 9)]
    assert plan.end.topic_ids == {"t": "new"}


def test_a_deleted_topic_is_noted_once() -> None:
    ids = {"t": "id", "u": "id-u"}
    before = last({T0: 5, U0: 7}, ids)
    plan = plan_micro_batch(before, snapshot({T0: (0, 5)}))
    assert plan.findings == [TopicGone("u")]
    assert plan.end is not None
    assert plan.end.to == {T0: 5}
    again = plan_micro_batch(plan.end, snapshot({T0: (0, 5)}))
    assert again.end is None
    assert again.findings == []


def test_a_partition_that_went() -> None:
    plan = plan_micro_batch(last({T0: 5, T1: 3}), snapshot({T0: (0, 5)}))
    assert plan.findings == [PartitionGone(T1)]


def test_a_rewind_moves_the_start_and_is_followed_once() -> None:
    view = GroupView("g", RewindMark(2), {T0: 1, U0: 4})
    plan = plan_micro_batch(last({T0: 5, T1: 3}), snapshot({T0: (0, 5), T1: (0, 3)}), view=view)
    assert plan.end is not None
    assert plan.end.ranges() == [OffsetRange(T0, 1, 5)]
    assert (plan.end.group, plan.end.mark) == ("g", RewindMark(2))
    after = plan_micro_batch(
        plan.end, snapshot({T0: (0, 5), T1: (0, 3)}), view=GroupView("g", RewindMark(2))
    )
    assert after.end is None


def test_a_rewind_of_a_partition_that_is_new_to_the_stream() -> None:
    view = GroupView("g", RewindMark(1), {T1: 2})
    plan = plan_micro_batch(last({T0: 5}), snapshot({T0: (0, 5), T1: (1, 3)}), view=view)
    assert plan.findings == []
    assert plan.end is not None
    assert plan.end.ranges() == [OffsetRange(T1, 2, 3)]


def test_a_rewind_does_not_bind_a_recreated_topic() -> None:
    view = GroupView("g", RewindMark(1), {T0: 4})
    plan = plan_micro_batch(last({T0: 5}), snapshot({T0: (0, 9)}, {"t": "new"}), view=view)
    assert plan.findings == [TopicRecreated("t", "id", "new")]
    assert plan.end is not None
    assert plan.end.ranges() == [OffsetRange(T0, 0, 9)]


def test_a_rewind_is_cut_to_what_the_log_holds() -> None:
    view = GroupView("g", RewindMark(1), {T0: 1, T1: 99})
    plan = plan_micro_batch(last({T0: 5, T1: 3}), snapshot({T0: (4, 5), T1: (0, 3)}), view=view)
    assert plan.findings == []
    assert plan.end is not None
    assert plan.end.start == {T0: 4, T1: 3}


def test_a_rewound_stream_under_a_limit_continues() -> None:
    view = GroupView("g", RewindMark(1), {T0: 0})
    plan = plan_micro_batch(last({T0: 5}), snapshot({T0: (0, 5)}), view=view)
    assert plan.end is not None
    cut = plan.end.cut({T0: 2})
    assert cut.ranges() == [OffsetRange(T0, 0, 2)]
    plan = plan_micro_batch(cut, snapshot({T0: (0, 5)}), view=GroupView("g", RewindMark(1)))
    assert plan.end is not None
    assert plan.end.ranges() == [OffsetRange(T0, 2, 5)]


def planned() -> StreamOffset:
    return StreamOffset(start={T0: 2, U0: 0}, to={T0: 6, U0: 4}, topic_ids={"t": "id", "u": "id-u"})


def test_replay_reads_exactly_what_the_checkpoint_says() -> None:
    ids = {"t": "id", "u": "id-u"}
    now = snapshot({T0: (0, 50), T1: (0, 9), U0: (0, 50)}, ids)
    assert replay(planned(), now) == (planned().ranges(), [])


def test_replay_of_what_has_gone_in_part() -> None:
    now = snapshot({T0: (4, 5), U0: (0, 9)}, {"t": "id", "u": "another"})
    ranges, findings = replay(planned(), now)
    assert ranges == [OffsetRange(T0, 4, 5)]
    assert findings == [
        TopicRecreated("u", "id-u", "another"),
        BelowLogStart(T0, 2, 4),
        AboveEnd(T0, 6, 5),
    ]
