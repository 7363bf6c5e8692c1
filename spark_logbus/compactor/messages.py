"""Messages between the broker and the compacting process, as lines of JSON."""

from __future__ import annotations

import msgspec


class SourceSegment(msgspec.Struct, frozen=True):
    """A sealed segment to be read: offsets ``[base_offset, end_offset)``."""

    path: str
    base_offset: int
    end_offset: int
    size_bytes: int


class Group(msgspec.Struct, frozen=True):
    """Consecutive segments to be written as one, with its index."""

    sources: list[SourceSegment]
    target: str
    target_index: str


class Job(msgspec.Struct, frozen=True):
    """One compaction of one log. Tombstones before ``delete_horizon`` may go."""

    topic_partition: str
    groups: list[Group]
    first_dirty_offset: int
    delete_horizon: int
    map_bytes: int
    index_interval_bytes: int


class MapProgress(msgspec.Struct, frozen=True, tag="progress"):
    """Report that the process is alive and has read a segment for its map."""

    records: int


class Compacted(msgspec.Struct, frozen=True, tag="compacted"):
    """Report that a group is done. Unless it ``changed``, nothing was to be done or written."""

    number: int
    changed: bool
    records_before: int
    records_after: int
    bytes_before: int
    bytes_after: int


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """Report that all groups are done, and the log is clean up to ``end_offset``."""

    end_offset: int
    keys: int
    undecodable: int  # record batches whose payload nobody can decode; they were kept
    too_large: int = 0  # those that would take too much memory decoded; they were kept
    of_columns: int = 0  # those of columns, which take a schema to be read; they were kept


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Report that the job cannot be done. ``damaged`` is the base offset of a segment that a scan
    should look at."""

    reason: str
    damaged: int | None = None


CompactorReport = MapProgress | Compacted | Finished | Failed

_REPORT = msgspec.json.Decoder(CompactorReport)
_JOB = msgspec.json.Decoder(Job)


def encode(message: Job | CompactorReport) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def decode_job(data: bytes) -> Job:
    """Reads a job. Raises msgspec.MsgspecError, which a broker and a child of the same release
    never see."""
    return _JOB.decode(data)


def decode_report(line: bytes) -> CompactorReport | None:
    """Reads a report; None for any other line, such as the last words of a process that dies."""
    try:
        report: CompactorReport = _REPORT.decode(line)
    except msgspec.MsgspecError:
        return None
    return report
