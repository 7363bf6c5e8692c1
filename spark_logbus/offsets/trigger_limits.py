"""Limits on one micro-batch (pure); the brokers say where a cut by bytes can fall."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_logbus.model import ONE_PIECE, OffsetRange, TopicPartition
from spark_logbus.offsets.ranges import Splitter

DEFAULT_MAX_DELAY_MS = 15 * 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerLimits:
    """A user's limits on a micro-batch."""

    max_records: int | None = None
    max_bytes: int | None = None

    min_records: int | None = None
    """Wait for so many, unless the last micro-batch began ``max_delay_ms`` ago."""

    max_delay_ms: int = DEFAULT_MAX_DELAY_MS

    @property
    def bounded(self) -> bool:
        return (self.max_records, self.max_bytes, self.min_records) != (None, None, None)


NO_LIMITS = TriggerLimits()


def limited_ends(
    ranges: Mapping[TopicPartition, OffsetRange], limits: TriggerLimits, splitter: Splitter
) -> dict[TopicPartition, int]:
    """The ends of the ranges under the limits on records and bytes."""
    ends = {topic_partition: max(r.start, r.end) for topic_partition, r in ranges.items()}
    if limits.max_records is not None:
        ends = share(ranges, limits.max_records)
    if limits.max_bytes is not None:
        within = [
            OffsetRange(topic_partition, ranges[topic_partition].start, end)
            for topic_partition, end in sorted(ends.items())
        ]
        ends.update(_ends_by_bytes([r for r in within if r.count], limits.max_bytes, splitter))
    return ends


def _ends_by_bytes(
    ranges: list[OffsetRange], max_bytes: int, splitter: Splitter
) -> dict[TopicPartition, int]:
    """Ends so that the ranges together hold about ``max_bytes``, in proportion to their sizes.

    Cuts fall where record batches meet, so that none is fetched twice, and each range keeps one
    record batch at least: no partition starves.
    """
    if not ranges:
        return {}
    sizes = {r: size for r, (_, size) in splitter(dict.fromkeys(ranges, ONE_PIECE)).items()}
    total = sum(sizes.values())
    if total <= max_bytes:
        return {}
    wanted: dict[OffsetRange, int] = {}
    for r in ranges:
        budget = max(1, sizes[r] * max_bytes // total)
        # Brokers bound the number of cuts in an answer, and only the first is of use here.
        likely = r.count * budget // max(1, sizes[r])
        near = min(r.end, r.start + 4 * likely + 1)
        wanted[OffsetRange(r.topic_partition, r.start, near)] = budget
    cut = splitter(wanted)
    return {r.topic_partition: cut[r][0][0].end for r in wanted}


def share(
    ranges: Mapping[TopicPartition, OffsetRange], max_records: int
) -> dict[TopicPartition, int]:
    """Ends of the ranges so that together they hold about ``max_records``.

    Each partition gets a part in proportion to what it has, so that all end together, and at
    least one record if it has any: no partition starves. So the sum is exactly ``max_records``,
    unless that is below the number of partitions with records, which then give one each.
    Integers only: offsets are larger than what a float holds exactly.
    """
    total = sum(offset_range.count for offset_range in ranges.values())
    if total <= max_records:
        return {topic_partition: max(r.start, r.end) for topic_partition, r in ranges.items()}
    taken: dict[TopicPartition, int] = {}
    remainders: list[tuple[int, TopicPartition]] = []
    for topic_partition, offset_range in sorted(ranges.items()):
        if not offset_range.count:
            taken[topic_partition] = 0
            continue
        quotient, remainder = divmod(offset_range.count * max_records, total)
        taken[topic_partition] = max(1, quotient)
        if quotient:
            remainders.append((-remainder, topic_partition))
    _settle(taken, ranges, remainders, max_records)
    return {
        topic_partition: r.start + taken[topic_partition] for topic_partition, r in ranges.items()
    }


def _settle(
    taken: dict[TopicPartition, int],
    ranges: Mapping[TopicPartition, OffsetRange],
    remainders: list[tuple[int, TopicPartition]],
    max_records: int,
) -> None:
    """Make the sum of ``taken`` equal ``max_records``: the largest remainders round up first, and
    what the guaranteed single records cost comes off the largest parts."""
    missing = max_records - sum(taken.values())
    for _, topic_partition in sorted(remainders):
        if missing <= 0:
            break
        if taken[topic_partition] < ranges[topic_partition].count:
            taken[topic_partition] += 1
            missing -= 1
    while missing < 0:
        topic_partition = max(taken, key=lambda candidate: (taken[candidate], candidate))
        if taken[topic_partition] <= 1:
            break
        cut = min(-missing, taken[topic_partition] - 1)
        taken[topic_partition] -= cut
        missing += cut
