"""Counts the rows of a warehouse's topic on this machine, and looks for offsets that are there
twice or not at all. Needs no Spark: three columns are read, of all files.

A load's commit file says which offsets are in. Of a topic that is not compacted each of them has a
row, so the warehouse itself shows which record is missing and which is there twice.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_logbus.audit.auditing import Place, not_loaded
from spark_logbus.audit.comparison import Copy
from spark_logbus.audit.counts import tally_times
from spark_logbus.audit.topic import TopicCounts
from spark_logbus.client import Cluster
from spark_logbus.errors import InvalidRequestError
from spark_logbus.model import TopicPartition
from spark_logbus.times import show_moment

SHOWN: Final = 10
"""So many offsets are named of one partition."""

_COLUMNS: Final = pa.schema(
    {"partition": pa.int32(), "offset": pa.int64(), "timestamp": pa.timestamp("us", "UTC")}
)

OffsetSpan = tuple[int, int]
"""``[start, end)``."""


@dataclass(frozen=True, slots=True)
class Loads:
    """What the commit files of a warehouse say: offsets that are in, by partition."""

    spans: dict[int, list[OffsetSpan]] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)

    @classmethod
    def from_commits(cls, commits: Sequence[str]) -> Loads:
        """Of commit files in their order. InvalidRequestError for what is none."""
        spans: dict[int, list[OffsetSpan]] = {}
        ends: dict[int, int] = {}
        for text in commits:
            try:
                commit = json.loads(text)
                ends |= {int(partition): end for partition, end in commit["ends"].items()}
                for each in commit["ranges"]:
                    spans.setdefault(each["partition"], []).append((each["start"], each["end"]))
            except (KeyError, TypeError, ValueError) as error:
                raise InvalidRequestError(
                    f"A commit file of the warehouse cannot be read ({error!r}): {text[:80]!r}."
                ) from error
        return cls(spans, ends)


def local_warehouse(cluster: Cluster, topic: str, directory: Path) -> Place:
    """The warehouse under ``directory``, as ``--warehouse`` of a load names it.
    InvalidRequestError if no load was ever committed there."""
    path = directory / topic
    commits = sorted((path / "_logbus" / "loads").glob("*.json"))
    if not commits:
        raise InvalidRequestError(
            f"{path} is no warehouse of {topic}: no load has been committed there. Name the "
            "directory that was given to load_warehouse.py as --warehouse."
        )
    loads = Loads.from_commits([commit.read_text() for commit in commits])

    def read(window_us: int, since_us: int) -> Copy:
        rows = rows_of(path)
        partitions, offsets = (_numbers(rows.column(name)) for name in ("partition", "offset"))
        times = rows.column("timestamp").combine_chunks().cast(pa.timestamp("us", "UTC"))
        beyond = not_loaded(cluster, topic, loads.ends, window_us=window_us, since_us=since_us)
        counts = TopicCounts(
            beyond.read_at_us,
            {
                start: tally
                for start, tally in tally_times(times, window_us=window_us).items()
                if start >= since_us
            },
        )
        return Copy(
            name=f"warehouse {directory}",
            counts=counts,
            not_yet=beyond.beyond,
            notes=tuple(offset_notes(topic, partitions, offsets, _numbers(times), loads)),
        )

    return Place(str(directory), read)


def rows_of(path: Path) -> pa.Table:
    """Partition, offset and timestamp of all records in a topic's directory of a warehouse."""
    # Imported here: who audits no warehouse does without.
    import pyarrow.parquet as pq
    from pyarrow import orc

    tables = [_COLUMNS.empty_table()]
    for file in _files(path):
        named = _in_directories(file.relative_to(path))
        inside = [name for name in _COLUMNS.names if name not in named]
        opened = orc.ORCFile(file) if file.suffix == ".orc" else pq.ParquetFile(file)
        table = opened.read(columns=inside).select(inside)
        tables.append(
            pa.table(
                [
                    pa.array([named[name]] * table.num_rows).cast(kind)
                    if name in named
                    else table.column(name).cast(kind)
                    for name, kind in zip(_COLUMNS.names, _COLUMNS.types, strict=True)
                ],
                schema=_COLUMNS,
            )
        )
    return pa.concat_tables(tables)


def _in_directories(file: Path) -> dict[str, str]:
    """The columns by which a layout divides, which stand in the names of directories alone. Of
    those that are read here a partition or an offset can be one, as whole numbers."""
    pairs = (part.partition("=") for part in file.parts[:-1])
    return {unquote(name): unquote(value) for name, equals, value in pairs if equals}


def _files(path: Path) -> list[Path]:
    """Of all records that are in, in any layout; those whose values did not decode stand apart."""
    apart = path / "_logbus"
    visible = (each for each in path.rglob("part-*") if apart not in each.parents)
    return sorted([*visible, *apart.glob("dead_letters/part-*")])


def _numbers(column: Any) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = np.asarray(column.cast(pa.int64()))
    return numbers


def offset_notes(
    topic: str,
    partitions: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
    times: npt.NDArray[np.int64],
    loads: Loads,
) -> list[str]:
    """A sentence for each partition with offsets that are there twice, and with some that are
    missing."""
    notes = []
    for partition in sorted(loads.spans):
        own = np.flatnonzero(partitions == partition)
        own = own[np.argsort(offsets[own], kind="stable")]
        there, at = offsets[own], times[own]
        again = np.flatnonzero(there[1:] == there[:-1]) + 1
        twice = [(int(there[row]), int(at[row])) for row in again[:SHOWN]]
        missing = missing_offsets(there, loads.spans[partition])
        topic_partition = TopicPartition(topic, partition)
        notes += doubled_note(topic_partition, twice, count=len(again))
        notes += missing_note(topic_partition, missing)
    return notes


def doubled_note(
    topic_partition: TopicPartition, some: Sequence[tuple[int, int]], *, count: int
) -> list[str]:
    """The sentence about ``count`` offsets that are there more than once, some of them with their
    times; none where there is none."""
    if not count:
        return []
    shown = ", ".join(f"{offset:,} (of {show_moment(at)})" for offset, at in some)
    more = f" and {count - len(some):,} more" if count > len(some) else ""
    return [
        f"{topic_partition}: {_offsets(count, 'is', 'are')} in the warehouse more than once: "
        f"{shown}{more}."
    ]


def missing_note(topic_partition: TopicPartition, missing: Sequence[OffsetSpan]) -> list[str]:
    """Likewise about offsets that are not there."""
    count = sum(end - start for start, end in missing)
    if not count:
        return []
    shown = ", ".join(
        f"{start:,}" if end - start == 1 else f"{start:,} to {end - 1:,}"
        for start, end in missing[:SHOWN]
    )
    more = f" and more, in {len(missing):,} places" if len(missing) > SHOWN else ""
    return [
        f"{topic_partition}: {_offsets(count, 'was', 'were')} loaded and not in the warehouse: "
        f"{shown}{more}."
    ]


def missing_offsets(there: npt.NDArray[np.int64], spans: Sequence[OffsetSpan]) -> list[OffsetSpan]:
    """The parts of ``spans`` of which none is ``there``, where offsets are sorted."""
    found: list[OffsetSpan] = []
    for start, end in sorted(spans):
        inside = there[np.searchsorted(there, start) : np.searchsorted(there, end)]
        edges = np.concatenate([[start - 1], inside, [end]])
        gaps = np.flatnonzero(np.diff(edges) > 1)
        found.extend((int(edges[row]) + 1, int(edges[row + 1])) for row in gaps)
    return found


def _offsets(count: int, one: str, many: str) -> str:
    return f"1 offset {one}" if count == 1 else f"{count:,} offsets {many}"
