"""Plans, progress and outcomes of moves, as tables, bars, lines and JSON."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from spark_logbus.cli.output import NUMBER, SIZE, Column, Console, Kind, Table
from spark_logbus.clock import SystemClock
from spark_logbus.model import TopicPartition
from spark_logbus.plurals import plural
from spark_logbus.sizes import human_bytes

if TYPE_CHECKING:
    from spark_logbus.client import MoveDescription, MovePlan
    from spark_logbus.client.admin.move_progress import MoveProgress
    from spark_logbus.protocol import MoveState

_TELL_EVERY_S: Final = 5.0  # without a terminal
_STUCK_S: Final = 20.0
#: Ids of brokers, in an order that means something.
BROKERS: Final = Kind(
    lambda ids: ", ".join(map(str, ids)), lambda ids: ",".join(map(str, ids)), right=True
)
_SHOWN: Final = 20  # moves in a table; --json has all


def plan_table(plan: MovePlan) -> Table:
    rows = Table(
        Column("topic"),
        Column("partition", NUMBER),
        Column("size_bytes", SIZE, "size"),
        Column("from", BROKERS),
        Column("to", BROKERS),
        title="Moves",
    )
    for each in plan.moves:
        where = each.topic_partition
        rows.add(
            {
                "topic": where.topic,
                "partition": where.partition,
                "size_bytes": each.size_bytes,
                "from": [*each.replicas],
                "to": [*each.to],
            }
        )
    return rows


def move_fields(move: MoveState) -> dict[str, Any]:
    """A move of a partition, for JSON."""
    return {
        "to": move.replicas or [move.to],
        "since_us": move.since_us,
        "throttle": move.throttle,
        "copied_bytes": move.copied_bytes if move.copied_bytes >= 0 else None,
        "total_bytes": move.total_bytes if move.total_bytes >= 0 else None,
        "quiet_s": move.quiet_ms / 1000,
        "error": move.error or None,
    }


def moved_so_far(fields: Mapping[str, Any], leader: int | None, running: Collection[int]) -> str:
    """A move in some words: where to, how far, and what is wrong with it."""
    to = ", ".join(map(str, fields["to"]))
    if fields["error"]:
        return f"to {to} failed: {fields['error']}"
    copied, total = fields["copied_bytes"], fields["total_bytes"]
    if copied is None or total is None:
        told = f"to {to}, has not begun"
    else:
        told = f"to {to}, {copied / total if total else 1:.0%}"
    wrong = _trouble(leader, fields["to"], fields["quiet_s"], running)
    return f"{told}, {wrong}" if wrong else told


def moves_table(moves: Collection[MoveDescription], running: Collection[int]) -> Table:
    """Table of the first moves: those that have failed, those that get on, then those that wait."""
    rows = Table(
        Column("topic"),
        Column("partition", NUMBER),
        Column("from", NUMBER),
        Column("to", BROKERS),
        Column("copied_bytes", SIZE, "copied"),
        Column("total_bytes", SIZE, "of"),
        Column("state"),
        title="Moves" if len(moves) <= _SHOWN else f"Moves, {_SHOWN} of {len(moves):,}",
    )
    first = sorted(
        moves, key=lambda move: (not move.error, move.copied_bytes is None, move.topic_partition)
    )
    for each in first[:_SHOWN]:
        row = fields_of_move(each)
        wrong = each.error or _trouble(each.leader, each.to, each.quiet_s, running)
        row["state"] = wrong or ("waits for its turn" if each.copied_bytes is None else "copying")
        rows.add(row, styles={"state": "bold red"} if wrong else {})
    return rows


def _trouble(
    leader: int | None, to: Collection[int], quiet_s: float, running: Collection[int]
) -> str:
    """Reason why a move that has not failed does not get on, empty where it does."""
    if leader is None:
        return "waits for a leader"
    for broker_id in (leader, *to):
        if broker_id not in running:
            return f"waits for broker {broker_id}, which is not running"
    return f"stuck for {_duration(quiet_s)}" if quiet_s >= _STUCK_S else ""


def fields_of_move(move: MoveDescription) -> dict[str, Any]:
    """A move with its partition, for JSON."""
    return {
        **place(move.topic_partition),
        "from": move.leader,
        "to": [*move.to],
        "since_us": move.since_us,
        "throttle": move.throttle,
        "copied_bytes": move.copied_bytes,
        "total_bytes": move.total_bytes,
        "quiet_s": move.quiet_s,
        "error": move.error or None,
    }


# -- how far moves are -----------------------------------------------------------------------


@contextmanager
def shown(out: Console) -> Iterator[Callable[[MoveProgress], None]]:
    """A bar in a terminal; else lines, now and then and when a partition is not moved."""
    if not out.is_terminal:
        yield _Lines(out).show
        return
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (BarColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=out.rich(), transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(found: MoveProgress) -> None:
            bar.update(
                task,
                total=max(1, found.total_bytes),
                completed=found.copied_bytes,
                description=how_far(found),
            )

        yield show


class _Lines:
    def __init__(self, out: Console) -> None:
        self._out = out
        self._clock = SystemClock()
        self._told_at = float("-inf")
        self._failed = 0

    def show(self, found: MoveProgress) -> None:
        now = self._clock.monotonic()
        failed = len(found.failed) + len(found.stayed)
        if found.over or failed != self._failed or now - self._told_at >= _TELL_EVERY_S:
            self._told_at, self._failed = now, failed
            self._out.print(how_far(found))


def how_far(found: MoveProgress) -> str:
    """Progress in one line: partitions, bytes, rate, time left, and what does not get on."""
    over = len(found.arrived)
    count = over + len(found.failed) + len(found.stayed) + len(found.moving) + len(found.waiting)
    told = [
        f"{over:,} of {plural(count, 'partition')}",
        f"{human_bytes(found.copied_bytes)} of {human_bytes(found.total_bytes)}",
    ]
    if found.bytes_per_s is not None and not found.over:
        told.append(f"{human_bytes(found.bytes_per_s)}/s")
    if found.left_s is not None:
        told.append(f"{_duration(found.left_s)} left")
    if found.failed:
        told.append(f"{len(found.failed):,} failed")
    stuck = [each for each in found.moving if each.quiet_s >= _STUCK_S]
    if stuck:
        longest = max(stuck, key=lambda each: each.quiet_s)
        told.append(f"{longest.topic_partition} stuck for {_duration(longest.quiet_s)}")
    return ", ".join(told)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def outcome(found: MoveProgress) -> dict[str, Any]:
    return {
        "moved": [place(each) for each in sorted(found.arrived)],
        "failed": [{**place(each), "error": why} for each, why in sorted(found.failed.items())],
        "stayed": [{**place(each), "why": why} for each, why in sorted(found.stayed.items())],
        "copied_bytes": found.copied_bytes,
    }


def place(where: TopicPartition) -> dict[str, Any]:
    """A partition, for JSON."""
    return {"topic": where.topic, "partition": where.partition}
