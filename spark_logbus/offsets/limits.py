"""How many records one micro-batch takes from each partition (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from spark_logbus.model import OffsetRange, TopicPartition


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
        return {tp: max(r.start, r.end) for tp, r in ranges.items()}
    taken: dict[TopicPartition, int] = {}
    remainders: list[tuple[int, TopicPartition]] = []
    for tp, offset_range in sorted(ranges.items()):
        if not offset_range.count:
            taken[tp] = 0
            continue
        quotient, remainder = divmod(offset_range.count * max_records, total)
        taken[tp] = max(1, quotient)
        if quotient:
            remainders.append((-remainder, tp))
    _settle(taken, ranges, remainders, max_records)
    return {tp: r.start + taken[tp] for tp, r in ranges.items()}


def _settle(
    taken: dict[TopicPartition, int],
    ranges: Mapping[TopicPartition, OffsetRange],
    remainders: list[tuple[int, TopicPartition]],
    max_records: int,
) -> None:
    """Make the sum of ``taken`` equal ``max_records``: the largest remainders round up first, and
    what the guaranteed single records cost comes off the largest parts."""
    missing = max_records - sum(taken.values())
    for _, tp in sorted(remainders):
        if missing <= 0:
            break
        if taken[tp] < ranges[tp].count:
            taken[tp] += 1
            missing -= 1
    while missing < 0:
        tp = max(taken, key=lambda candidate: (taken[candidate], candidate))
        if taken[tp] <= 1:
            break
        cut = min(-missing, taken[tp] - 1)
        taken[tp] -= cut
        missing += cut
