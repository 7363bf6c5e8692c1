"""What a round is to copy. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from spark_logbus.coordination.mirrors import Audited, MirroredTopic, PlannedRound
from spark_logbus.errors import DataLossError, TopicRecreatedError
from spark_logbus.mirror.source.source import SourceTopic
from spark_logbus.model import OffsetRange, TopicPartition

# Its plan is one node of ZooKeeper, its decision another. Others have their turn in the next round.
MAX_PARTITIONS: Final = 1_000


@dataclass(frozen=True, slots=True)
class NewRecords:
    """Ranges that are not copied yet, in order, and those that are lost before them."""

    ranges: tuple[OffsetRange, ...]
    lost: tuple[OffsetRange, ...]


def new_records(
    known: Mapping[str, MirroredTopic], found: Mapping[str, SourceTopic], *, allow_gaps: bool
) -> NewRecords:
    """What the source has beyond the copy. Raises TopicRecreatedError for a topic that is another
    one by now, DataLossError for records that went before they were copied (but with
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
    """The ranges of a plan that cannot be read as they were planned: their topic is gone, is
    another one, or was forgotten, or their records are not all there any more."""
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
    """TopicRecreatedError for another topic of that name."""
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
    """At most so many, beginning with the partition that follows the last of the round before."""
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
    """The entries of the topics of which the round of this ``number`` copies, and is counted or
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


def shares(sizes: Mapping[OffsetRange, int], *, max_bytes: int) -> dict[OffsetRange, int]:
    """The bytes that each range gets, where together they are to have about ``max_bytes``: small
    ones all of theirs, the others equal parts of what is left."""
    left, given = max_bytes, {}
    by_size = sorted(sizes, key=lambda each: (sizes[each], each))
    for number, each in enumerate(by_size):
        given[each] = min(sizes[each], max(1, left // (len(by_size) - number)))
        left -= given[each]
    return given
