"""Lines that tell how far moves are, and tables of them."""

from __future__ import annotations

from typing import Any

import pytest

from spark_logbus.cli.admin.moves_shown import (
    how_far,
    move_fields,
    moved_so_far,
    moves_table,
)
from spark_logbus.client.admin.move_progress import MoveProgress
from spark_logbus.client.admin.moves import MoveDescription
from spark_logbus.model import TopicPartition
from spark_logbus.protocol import MoveState


def described(number: int, **fields: Any) -> MoveDescription:
    values: dict[str, Any] = {
        "leader": 1, "to": (2,), "since_us": 1, "throttle": 0, "error": "", "copied_bytes": 50,
        "total_bytes": 100, "quiet_s": 0.0, "at": 1.0,
    }  # fmt: skip
    where = TopicPartition("t", number)
    return MoveDescription(topic_partition=where, **{**values, **fields})


def progress(**fields: Any) -> MoveProgress:
    values: dict[str, Any] = {
        "moving": [], "waiting": set(), "arrived": set(), "failed": {}, "stayed": {},
        "copied_bytes": 0, "total_bytes": 0, "bytes_per_s": None,
    }  # fmt: skip
    return MoveProgress(**{**values, **fields})


T0, T1, T2, T3 = (TopicPartition("t", number) for number in range(4))
MIB = 1 << 20


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            progress(moving=[described(0)], waiting={T1}, total_bytes=10 * MIB),
            "0 of 2 partitions, 0 B of 10.0 MiB",
        ),
        (
            progress(
                moving=[described(0)], arrived={T1}, copied_bytes=4 * MIB, total_bytes=10 * MIB,
                bytes_per_s=MIB / 50,
            ),
            "1 of 2 partitions, 4.0 MiB of 10.0 MiB, 20.5 KiB/s, 5 min 0 s left",
        ),
        (
            progress(
                moving=[described(0, quiet_s=19.0), described(1, quiet_s=7_260.0)],
                failed={T2: "No room."}, stayed={T3: "Cancelled."}, total_bytes=5, bytes_per_s=0.0,
            ),
            "0 of 4 partitions, 0 B of 5 B, 0 B/s, 1 failed, t-1 stuck for 2 h 1 min",
        ),
        (
            progress(arrived={T0}, copied_bytes=5, total_bytes=5, bytes_per_s=9.0),
            "1 of 1 partition, 5 B of 5 B",
        ),
    ],
)  # fmt: skip
def test_progress_in_one_line(found: MoveProgress, said: str) -> None:
    assert how_far(found) == said


def test_a_move_in_some_words() -> None:
    for state, said in (
        (MoveState(3, 1), "to 3, has not begun"),
        (MoveState(3, 1, copied_bytes=1, total_bytes=3), "to 3, 33%"),
        (MoveState(3, 1, copied_bytes=0, total_bytes=0), "to 3, 100%"),
        (
            MoveState(3, 1, copied_bytes=1, total_bytes=3, quiet_ms=61_000),
            "to 3, 33%, stuck for 1 min 1 s",
        ),
        (MoveState(3, 1, error="No room."), "to 3 failed: No room."),
        (MoveState(3, 1, replicas=[3, 1]), "to 3, 1, has not begun"),
    ):
        assert moved_so_far(move_fields(state), 1, [1, 3]) == said


@pytest.mark.parametrize("leader", [1, 3])
def test_a_move_says_which_broker_it_waits_for(leader: int) -> None:
    move = move_fields(MoveState(3 if leader == 1 else 2, 1, copied_bytes=1, total_bytes=3,
                                 quiet_ms=61_000))  # fmt: skip
    told = moved_so_far(move, leader, [1, 2])
    assert told == f"to {move['to'][0]}, 33%, waits for broker 3, which is not running"


def test_what_failed_comes_first_and_what_waits_last() -> None:
    moves = [
        described(0, copied_bytes=None, total_bytes=None), described(1),
        described(2, error="No room."), described(3, quiet_s=60.0),
        described(4, to=(3,)), described(5, leader=9, quiet_s=70.0),
    ]  # fmt: skip
    assert moves_table(moves, [1, 2]).plain() == [
        "TOPIC  PARTITION  FROM  TO  COPIED-BYTES  TOTAL-BYTES  STATE",
        "t              2     1   2            50          100  No room.",
        "t              1     1   2            50          100  copying",
        "t              3     1   2            50          100  stuck for 1 min 0 s",
        "t              4     1   3            50          100  waits for broker 3, which is not "
        "running",
        "t              5     9   2            50          100  waits for broker 9, which is not "
        "running",
        "t              0     1   2             -            -  waits for its turn",
    ]
    assert len(moves_table([described(number) for number in range(300)], [1, 2])) == 20
