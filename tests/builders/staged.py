"""Record batches as the attempts of a write's tasks stage them."""

from __future__ import annotations

from spark_logbus.log import DecidedShare, PartitionLog, StagedBy
from spark_logbus.log.staging.staging import NOBODY
from spark_logbus.record.stage_id import StageIds, stage_id
from tests.builders.producers import batch
from tests.builders.record_batches import joined

WRITE = 77


def attempt(number: int, *, write: int = WRITE) -> int:
    return stage_id(write, number)


def stage(
    log: PartitionLog,
    producer: int,
    *counts: int,
    start: int = 0,
    flush: bool = True,
    by: StagedBy = NOBODY,
) -> None:
    """Stage record batches of so many records each, numbered from ``start`` on."""
    batches = []
    for count in counts:
        batches.append(batch(start, count, producer=producer))
        start += count
    staged = log.staging.stage(joined(*batches), leader_epoch=1, by=by)
    if flush:
        staged.file.flush()


def share(records: int, *attempts: int, write: int = WRITE) -> DecidedShare:
    return DecidedShare(StageIds(write, [(one, one) for one in attempts]), records)


def publish(log: PartitionLog, decided: DecidedShare) -> None:
    log.publishing.publish(decided, leader_epoch=1)
    log.flush()
    log.publishing.finish(decided.write)


def producers_in(log: PartitionLog) -> list[tuple[int, int]]:
    """Attempt number and sequence of all visible record batches, in their order."""
    from tests.fakes.log_directory import batches_from

    mask = (1 << 20) - 1
    return [(header.producer_id & mask, header.base_sequence) for header, _ in batches_from(log, 0)]
