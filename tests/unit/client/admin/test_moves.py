"""Descriptions of moves from one look to the next, and requests for many moves."""

from __future__ import annotations

from spark_logbus.client.admin.moves import MoveDescription, _parts, described_moves
from spark_logbus.model import TopicPartition
from spark_logbus.offsets.descriptions import PartitionDescription, TopicDescription
from spark_logbus.protocol import MoveState, PartitionMove


def topic(**moves: MoveState | None) -> dict[str, TopicDescription]:
    """A topic whose partitions p0, p1, ... have these moves."""
    partitions = {
        int(name[1:]): PartitionDescription(int(name[1:]), None, None, leader_id=1, move=move)
        for name, move in moves.items()
    }
    return {"t": TopicDescription("t", "id", {}, partitions)}


def move(copied: int = -1, total: int = -1, *, since_us: int = 5, to: int = 2) -> MoveState:
    return MoveState(to, since_us, 0, "", copied, total)


def looked(at: float, state: MoveState, *since: MoveDescription) -> MoveDescription:
    (found,) = described_moves(topic(p0=state, p1=None), at, since)
    assert found.topic_partition == TopicPartition("t", 0)
    return found


def test_rates_and_the_time_left_need_two_looks() -> None:
    first = looked(10.0, move(100, 500))
    assert (first.copied_bytes, first.total_bytes) == (100, 500)
    assert (first.bytes_per_s, first.left_s) == (None, None)
    second = looked(12.0, move(200, 500), first)
    assert (second.bytes_per_s, second.left_s) == (50.0, 6.0)
    # The same moment: nothing new is known.
    assert looked(12.0, move(250, 500), second).bytes_per_s == 50.0
    rests = looked(14.0, move(200, 500), second)
    assert (rests.bytes_per_s, rests.left_s) == (0.0, None)
    assert looked(15.0, move(500, 500), rests).left_s == 0.0
    # Its copy has begun anew.
    assert looked(16.0, move(10, 500), rests).bytes_per_s == 0.0


def test_a_look_at_another_move_says_nothing() -> None:
    first = looked(10.0, move(100, 500))
    assert looked(12.0, move(200, 500, since_us=6), first).bytes_per_s is None
    assert looked(12.0, move(200, 500, to=3), first).bytes_per_s is None


def test_what_has_not_begun_has_no_numbers() -> None:
    waits = looked(10.0, move())
    assert (waits.copied_bytes, waits.total_bytes, waits.left_s) == (None, None, None)
    assert looked(12.0, move(5, 10), waits).bytes_per_s is None
    assert looked(12.0, MoveState(2, 5, 7, "No room."), waits).error == "No room."


def test_a_topic_is_never_cut_in_two() -> None:
    wanted = [
        PartitionMove(name, number, 1)
        for name, count in {"a": 300, "b": 200, "c": 1, "d": 900, "e": 2}.items()
        for number in range(count)
    ]
    parts = list(_parts(wanted))
    assert [move for part in parts for move in part] == wanted
    assert [sorted({move.topic for move in part}) for part in parts] == [
        ["a", "b"], ["c"], ["d"], ["e"],
    ]  # fmt: skip
    assert list(_parts([])) == []
