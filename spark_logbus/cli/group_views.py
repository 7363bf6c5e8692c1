"""``logbus groups list`` and ``describe``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from spark_logbus.cli.options import DEFAULT_ZOOKEEPER, AsJson, ZooKeeper, connected
from spark_logbus.cli.output import ago, console, table, utc

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table

    from spark_logbus.client import Cluster
    from spark_logbus.coordination import CommittedOffset, Holder, Rewind, Session
    from spark_logbus.model import TopicPartition


@contextmanager
def group_session(zookeeper: str) -> Iterator[Session]:
    from spark_logbus.coordination import Session

    with Session(zookeeper, client_name="logbus-groups", expects_cluster=True) as session:
        yield session


def refuse_unknown(group: str, known: list[str]) -> None:
    from spark_logbus.errors import InvalidRequestError

    names = ", ".join(known) or "none"
    raise InvalidRequestError(
        f"Group {group!r} has committed no offsets; groups that have: {names}."
    )


def list_(zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER, as_json: AsJson = False) -> None:
    """The groups that have committed offsets, and the queries that hold them."""
    from spark_logbus.coordination import CorruptNodeError, GroupOffsets, GroupRewinds

    with group_session(zookeeper) as session:
        offsets, rewinds = GroupOffsets(session), GroupRewinds(session)
        numbers = ("partitions", "rewinds")
        heads = ("group", "topics", *numbers, "last commit (UTC)", "held by")
        rows = table(*heads, numbers=numbers)
        for group in offsets.groups():
            try:
                committed = offsets.committed(group)
                holders = offsets.holders(group)
                generation = rewinds.generation(group)
            except CorruptNodeError as failure:
                console(stderr=True).print(f"Group {group} is left out. {failure.message}")
                continue
            topics = sorted({tp.topic for tp in committed})
            last = max((entry.committed_at_us for entry in committed.values()), default=None)
            if as_json:
                line = {
                    "group": group,
                    "topics": topics,
                    "partitions": len(committed),
                    "rewinds": generation,
                    "last_commit_us": last,
                    "holders": _holders_json(holders),
                }
                print(json.dumps(line))
            rows.add_row(
                group,
                ", ".join(topics),
                str(len(committed)),
                str(generation),
                utc(last) if last is not None else "-",
                ", ".join(sorted({f"{h.pid} on {h.host}" for h in holders.values()})) or "-",
            )
    if not as_json:
        console().print(rows if rows.rows else "No consumer group has committed offsets.")


def describe(group: str, zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER, as_json: AsJson = False) -> None:
    """Who holds a group, its committed offsets and its lag, and how it was rewound."""
    from spark_logbus.clock import SystemClock
    from spark_logbus.coordination import GroupOffsets, GroupRewinds

    with group_session(zookeeper) as session, connected(zookeeper) as cluster:
        offsets = GroupOffsets(session)
        committed, holders = offsets.committed(group), offsets.holders(group)
        rewinds = GroupRewinds(session).history(group)
        if not committed and not holders:
            refuse_unknown(group, offsets.groups())
        positions = _positions(committed, cluster)
    if as_json:
        print(json.dumps(_as_json(group, holders, positions, rewinds)))
        return
    out = console()
    for topic, holder in sorted(holders.items()):
        out.print(f"Topic {topic} is held by {holder}.")
    if not holders:
        out.print("No running query holds this group.")
    if positions:
        out.print(_table(positions, now_us=SystemClock().now_us()))
    for rewind in rewinds:
        out.print(_told(rewind))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Position:
    """A committed offset beside what the partition holds now; ``state`` says why that is
    unknown, or ``ok``."""

    tp: TopicPartition
    committed: CommittedOffset
    high_watermark: int | None
    state: str

    @property
    def lag(self) -> int | None:
        end = self.high_watermark
        return None if end is None else max(0, end - self.committed.offset)


def _positions(
    committed: Mapping[TopicPartition, CommittedOffset], cluster: Cluster
) -> list[_Position]:
    from spark_logbus.client import Admin
    from spark_logbus.model import Latest

    admin = Admin(cluster)
    topics = {topic.name: topic for topic in admin.topics()}
    states: dict[TopicPartition, str] = {}
    for tp, entry in committed.items():
        topic = topics.get(tp.topic)
        if topic is None or tp.partition not in topic.partitions:
            states[tp] = "topic deleted"
        elif entry.topic_id not in (None, topic.topic_id):
            states[tp] = "topic recreated"
        else:
            states[tp] = "ok"
    ends = admin.list_offsets({tp: Latest() for tp, state in states.items() if state == "ok"})
    return [
        _Position(tp=tp, committed=entry, high_watermark=ends.get(tp), state=states[tp])
        for tp, entry in sorted(committed.items())
    ]


def _table(positions: list[_Position], *, now_us: int) -> Table:
    numbers = ("partition", "committed", "high watermark", "lag", "age")
    rows = table("topic", *numbers, "by", "at (UTC)", numbers=numbers)
    rows.columns[-1].no_wrap = True
    for position in positions:
        end, lag, entry = position.high_watermark, position.lag, position.committed
        rows.add_row(
            position.tp.topic,
            str(position.tp.partition),
            f"{entry.offset:,}",
            position.state if end is None else f"{end:,}",
            "-" if lag is None else f"{lag:,}",
            ago(now_us - entry.committed_at_us),
            entry.by,
            utc(entry.committed_at_us),
        )
    return rows


def _told(rewind: Rewind) -> str:
    what = " ".join(part for part in (rewind.what, f"({rewind.why})" if rewind.why else "") if part)
    to = ", ".join(f"{tp}: {offset:,}" for tp, offset in sorted(rewind.positions.items()))
    return (
        f"Rewind {rewind.generation} by {rewind.by} at {utc(rewind.when_us)} UTC: "
        f"{what or 'for no given reason'}; {to}."
    )


def _as_json(
    group: str,
    holders: Mapping[str, Holder],
    positions: list[_Position],
    rewinds: list[Rewind],
) -> dict[str, Any]:
    return {
        "group": group,
        "holders": _holders_json(holders),
        "partitions": [
            {
                "topic": position.tp.topic,
                "partition": position.tp.partition,
                "committed": position.committed.offset,
                "high_watermark": position.high_watermark,
                "lag": position.lag,
                "state": position.state,
                "by": position.committed.by,
                "committed_at_us": position.committed.committed_at_us,
                "generation": position.committed.generation,
            }
            for position in positions
        ],
        "rewinds": [
            {
                "generation": rewind.generation,
                "what": rewind.what,
                "why": rewind.why,
                "by": rewind.by,
                "when_us": rewind.when_us,
                "positions": [
                    {"topic": tp.topic, "partition": tp.partition, "offset": offset}
                    for tp, offset in sorted(rewind.positions.items())
                ],
            }
            for rewind in rewinds
        ],
    }


def _holders_json(holders: Mapping[str, Holder]) -> dict[str, Any]:
    return {topic: asdict(holder) for topic, holder in sorted(holders.items())}
