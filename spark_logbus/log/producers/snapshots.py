"""Saves snapshots of a log's producers, and recovers their state from the newest.

A snapshot holds the state before the record batch at its offset. One is written at each roll,
synced, and one at an orderly stop, not synced. At open the newest one that is whole is taken, and
the headers of all record batches after it are read; without any, the headers of the whole log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from spark_logbus.errors import StorageError
from spark_logbus.log.disk import names
from spark_logbus.log.disk.checksummed_file import checksummed_file, read_checksummed_file
from spark_logbus.log.disk.filesystem import FileSystem, remove_if_possible, storage_error
from spark_logbus.log.producers.states import ProducerState, ProducerStateManager, SequenceRun
from spark_logbus.log.segment.lookup import BatchPosition, DamageFoundError, Lookup
from spark_logbus.log.view import LogView
from spark_logbus.record import format as fmt

logger = logging.getLogger(__name__)

_TITLE: Final = "logbus-producers 1"


def save_producers(
    files: FileSystem,
    directory: Path,
    states: ProducerStateManager,
    *,
    offset: int,
    sync: bool,
    keep_from: int,
) -> None:
    """Write the snapshot at ``offset``, the last; and remove those before ``keep_from``, to
    which the log is not taken back.

    Logs a warning when the disk refuses it: then a recovery has more to read. The directory is
    not synced.
    """
    path = directory / names.producers(offset)
    try:
        if files.exists(path):
            files.remove(path)
        try:
            file = files.open(path, create=True)
            file.pwrite(checksummed_file(_TITLE, map(_line, states.items())), 0)
            if sync:
                file.sync()
        except OSError:
            remove_if_possible(files, path)
            raise
        remove_producers(
            files, directory, lambda each: each != offset and not keep_from <= each < offset
        )
    except OSError as error:
        logger.warning(
            "%s After a crash now, recovery would take longer.",
            storage_error("write the snapshot of producers", path, error),
        )


def remove_producers(files: FileSystem, directory: Path, goes: Callable[[int], bool]) -> bool:
    """Remove the snapshots at offsets of which that is true; True if there were any. Raises
    OSError."""
    offsets = [offset for offset in _offsets(files, directory) if goes(offset)]
    for offset in offsets:
        files.remove(directory / names.producers(offset))
    return bool(offsets)


def recover_producers(
    files: FileSystem, directory: Path, states: ProducerStateManager, view: LogView
) -> None:
    """Bring ``states``, empty, to the end of ``view``, all of which is on disk. Raises OSError."""
    end = view.active.metadata.end_offset
    for offset in sorted(_offsets(files, directory), reverse=True):
        if offset > end:
            continue  # of records that a crash took
        if _restore(files, directory / names.producers(offset), states):
            _replay(states, view, offset)
            return
    if end > view.log_start_offset:
        logger.info(
            "There is no snapshot of producers in %s: the headers of the log are read.", directory
        )
        _replay(states, view, view.base_offsets[0])


def truncate_producers(
    files: FileSystem, directory: Path, states: ProducerStateManager, view: LogView
) -> None:
    """Take ``states`` back to the end of ``view``. Raises OSError.

    What they know of records before that is kept, for compaction may have removed the records. Of
    a producer all of whose known appends are cut off, the log says what it appended before.
    """
    cut_off = states.truncate(view.active.metadata.end_offset)
    if not cut_off:
        return
    earlier = ProducerStateManager(states.topic_partition)
    recover_producers(files, directory, earlier, view)
    states.restore_all((each, known) for each, known in earlier.items() if each in cut_off)


def _replay(states: ProducerStateManager, view: LogView, start: int) -> None:
    """Note the record batches of the log from the one at offset ``start`` on."""
    for number, end in enumerate((*view.sealed_ends, view.active.metadata.end_offset)):
        if end <= start:
            continue
        visible = view.visible_segment(number)
        try:
            _replay_segment(states, visible.segment.lookup(), start, visible.limit)
        except DamageFoundError:
            logger.warning(
                "The rest of %s is damaged: a producer that appended there may have to start over.",
                visible.segment.path,
            )


def _replay_segment(states: ProducerStateManager, lookup: Lookup, start: int, limit: int) -> None:
    first = BatchPosition(*lookup.index.entry(0))
    place = first if start <= first.offset else lookup.locate(start, limit)
    for step in lookup.walk(place, limit):
        if step.producer_id != fmt.NO_PRODUCER:
            next_sequence = step.base_sequence + step.next_offset - step.base_offset
            states.extend(
                step.producer_id,
                epoch=step.producer_epoch,
                run=SequenceRun(step.base_sequence, next_sequence, step.base_offset),
                append_time_us=step.append_time_us,
            )


def _offsets(files: FileSystem, directory: Path) -> list[int]:
    found = (names.parse_producers(name) for name in files.names(directory))
    return [offset for offset in found if offset is not None]


def _line(entry: tuple[int, ProducerState]) -> str:
    producer_id, producer = entry
    runs = ",".join(f"{run.first}:{run.next}:{run.base_offset}" for run in producer.runs)
    return (
        f"{producer_id} {producer.epoch} {producer.last_append_us} {runs} {producer.first_offset}"
    )


def _restore(files: FileSystem, path: Path, states: ProducerStateManager) -> bool:
    """Fill ``states`` from a snapshot; False when that cannot be read."""
    try:
        lines = read_checksummed_file(files, path, _TITLE)
    except StorageError as error:
        logger.warning("%s", error)
        return False
    try:
        found = [_parsed(line) for line in lines or ()]
    except (ValueError, TypeError):
        logger.warning("%s says nothing about producers and is ignored.", path)
        return False
    for producer_id, producer in found:
        states.restore(producer_id, producer)
    return lines is not None


def _parsed(line: str) -> tuple[int, ProducerState]:
    producer_id, epoch, last_append_us, runs, *rest = line.split(" ")
    kept = tuple(SequenceRun(*map(int, run.split(":"))) for run in runs.split(","))
    # Release 0.1.0 did not say where the producer began.
    first_offset = int(rest[0]) if rest else kept[0].base_offset
    return int(producer_id), ProducerState(int(epoch), int(last_append_us), kept, first_offset)
