"""Plan of what a round copies, and the numbers of its writes. Pure.

A round's decision stands in the atomic writer's state with the number of its write alone. The plan
stands in the mirror's. Should the two not belong together, as when one was restored from a backup,
that has to be noticed, so the number of a write tells which plan it carries out, and if it does::

    bit  43       23        1        0
         | token  | attempt | closes |
"""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from spark_logbus.coordination.mirrors import Audited, MirroredTopic, PlannedRound
from spark_logbus.errors import DataLossError, TopicRecreatedError
from spark_logbus.mirror.source.source import SourceTopic
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.record.stage_id import WRITE_BITS

# Its plan is one node of ZooKeeper, its decision another. Others have their turn in the next round.
MAX_PARTITIONS: Final = 1_000

TOKEN_BITS: Final = 20
_ATTEMPT_BITS: Final = WRITE_BITS - TOKEN_BITS - 1


@dataclass(frozen=True, slots=True)
class NewRecords:
    """Ranges that are not copied yet, in order, and those that are lost before them."""

    ranges: tuple[OffsetRange, ...]
    lost: tuple[OffsetRange, ...]


def new_records(
    known: Mapping[str, MirroredTopic], found: Mapping[str, SourceTopic], *, allow_gaps: bool
) -> NewRecords:
    """Finds what the source has beyond the copy. Raises TopicRecreatedError for a topic that is
    another one by now, DataLossError for records that went before they were copied (but with
    ``allow_gaps``), and for a log that ends before the copy does."""
    ranges: list[OffsetRange] = []
    lost: list[OffsetRange] = []
    for name, topic in sorted(found.items()):
        entry = known[name]
        require_same(name, entry, topic)
        for partition, points in sorted(entry.points.items()):
            at, position = TopicPartition(name, partition), points[-1].source
            span = topic.spans.get(partition)
            if span is None:
                continue
            if span.end < position:
                raise DataLossError(
                    f"{at} ends at {span.end:,} in the source, and was copied up to "
                    f"{position:,} before: the source has lost records that the target has. "
                    "What comes there now may be other records under the same offsets. Have it "
                    f"copied anew with `logbus mirror forget`, when {entry.target} is deleted in "
                    "the target or the topic gets another name there."
                )
            begin = span.clamp(position)
            if begin > position:
                lost.append(OffsetRange(at, position, begin))
            # Up to where records are lost: the next round begins there, and finds it.
            if span.reach(begin) > begin:
                ranges.append(OffsetRange(at, begin, span.reach(begin)))
    if lost and not allow_gaps:
        raise DataLossError(
            f"The source has lost {', '.join(map(str, lost[:5]))}"
            f"{' and more' if lost[5:] else ''} before it was copied: deleted by retention, or "
            "given up with a log. To copy what is left, run the mirror with --allow-gaps. To keep "
            "retention from it, give the topics a longer retention.ms, or run the mirror more "
            "often."
        )
    return NewRecords(tuple(ranges), tuple(lost))


def unreadable(
    round_: PlannedRound, known: Mapping[str, MirroredTopic], found: Mapping[str, SourceTopic]
) -> list[OffsetRange]:
    """Returns the ranges of a plan that cannot be read as they were planned: their topic is gone,
    is another one, or was forgotten, or their records are not all there any more."""
    gone = []
    for each in round_.ranges:
        name, partition = each.topic_partition.topic, each.topic_partition.partition
        topic = found.get(name)
        span = None if topic is None else topic.spans.get(partition)
        if (
            topic is None
            or span is None
            or name not in known
            or topic.topic_id != round_.topic_ids[name]
            or not span.start <= each.start <= each.end <= span.end
            or span.count(each.start, each.end) < each.count
        ):
            gone.append(each)
    return gone


def require_same(name: str, known: MirroredTopic, found: SourceTopic) -> None:
    """Raises TopicRecreatedError for another topic of that name."""
    if known.topic_id != found.topic_id:
        raise TopicRecreatedError(
            f"The topic {name} was deleted and created again in the source since it was copied "
            f"(id {known.topic_id}, now {found.topic_id}); the records of two topics are not mixed "
            f"in {known.target}. Have the new one copied with `logbus mirror forget`, when "
            f"{known.target} is deleted in the target or the topic gets another name there."
        )


def in_turn(
    ranges: Sequence[OffsetRange], *, after: TopicPartition | None, most: int = MAX_PARTITIONS
) -> list[OffsetRange]:
    """Picks ``most`` ranges, from the partition on that follows the last of the round before."""
    if after is None or len(ranges) <= most:
        return list(ranges[:most])
    first = bisect_right(ranges, after, key=lambda each: each.topic_partition)
    return [*ranges[first:], *ranges[:first]][:most]


def planned(
    number: int,
    ranges: Sequence[OffsetRange],
    topics: Mapping[str, MirroredTopic],
    *,
    token: int,
) -> PlannedRound:
    names = {each.topic_partition.topic for each in ranges}
    topic_ids = {name: topics[name].topic_id for name in sorted(names)}
    return PlannedRound(number, token, topic_ids, tuple(sorted(ranges)))


def audited(
    topics: Mapping[str, MirroredTopic], number: int, *, audit: bool, looked_us: int
) -> dict[str, MirroredTopic]:
    """Returns the entries of the topics of which the round of this ``number`` copies, counted or
    not. The source was looked at after ``looked_us``: what has come since is in no round before."""
    return {
        name: replace(entry, audited=_audited(entry, number, looked_us) if audit else None)
        for name, entry in topics.items()
    }


def _audited(entry: MirroredTopic, number: int, looked_us: int) -> Audited:
    if entry.audited is not None:
        return entry.audited
    is_new = all(len(points) == 1 for points in entry.points.values())
    return Audited(number, 0 if is_new else looked_us)


# -- numbers of writes --------------------------------------------------------------------


def new_token() -> int:
    """Draws the token of a plan."""
    return secrets.randbits(TOKEN_BITS)


def new_write(token: int, *, closes: bool = False) -> int:
    """Draws the number of another attempt to carry out the plan with that token; one that
    ``closes`` its round writes nothing."""
    return token << _ATTEMPT_BITS + 1 | secrets.randbits(_ATTEMPT_BITS) << 1 | closes


def is_of(write: int, token: int) -> bool:
    """True if the write carries out the plan with that token, or closes its round."""
    return write >> _ATTEMPT_BITS + 1 == token


def closes_round(write: int) -> bool:
    """True if the write says that nothing of its plan is carried out."""
    return bool(write & 1)
