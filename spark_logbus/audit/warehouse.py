"""Counts the rows of a warehouse's topic on this machine, and looks for offsets that are there
twice or not at all. Needs no Spark: three columns are read, of all files.

A load's commit file says which offsets are in. Of a topic that is not compacted each of them has a
row, so the warehouse itself shows which record is missing and which is there twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_logbus.audit.auditing import Place
from spark_logbus.audit.comparison import Copy
from spark_logbus.audit.counts import Tallies, WindowTally, tally_times
from spark_logbus.audit.topic import TopicCounts, count_topic
from spark_logbus.client import Cluster
from spark_logbus.errors import InvalidRequestError
from spark_logbus.model import TopicPartition
from spark_logbus.times import show_moment

SHOWN: Final = 10
"""So many offsets are named of one partition."""

ROW_COLUMNS: Final = pa.schema(
    {"partition": pa.int32(), "offset": pa.int64(), "timestamp": pa.timestamp("us", "UTC")}
)
"""Columns that are read of all rows."""

_SUFFIXES: Final = (".parquet", ".orc")

OffsetSpan = tuple[int, int]
"""``[start, end)``."""


@dataclass(frozen=True, slots=True)
class Loads:
    """Offsets that are in a warehouse, by partition, as its commit files say."""

    spans: dict[int, list[OffsetSpan]] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)

    @classmethod
    def from_commits(cls, commits: Sequence[str]) -> Loads:
        """Reads commit files in their order. InvalidRequestError for a text that is none."""
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
    """Makes a place of the warehouse under ``directory``, as ``--warehouse`` of a load names it.
    InvalidRequestError if no load was ever committed there."""
    path = directory / topic
    commits = sorted((path / "_logbus" / "loads").glob("*.json"))
    loads = loads_of(str(path), topic, [commit.read_text() for commit in commits])

    return place_of(cluster, topic, f"warehouse {directory}", loads, lambda: rows_of(path))


def place_of(
    cluster: Cluster, topic: str, name: str, loads: Loads, rows: Callable[[], pa.Table]
) -> Place:
    """Makes a place of what ``rows`` reads: the columns ``ROW_COLUMNS`` of all records, none of
    them null."""

    def read(window_us: int, since_us: int) -> Copy:
        found = rows()
        partitions, offsets = (_numbers(found.column(name)) for name in ("partition", "offset"))
        times = found.column("timestamp").combine_chunks().cast(pa.timestamp("us", "UTC"))
        in_topic = count_topic(
            cluster, topic, window_us=window_us, since_us=since_us, beyond=loads.ends
        )
        tallies = tally_times(times, window_us=window_us)
        return Copy(
            name=name,
            counts=TopicCounts(in_topic.read_at_us, since(tallies, since_us)),
            not_yet=in_topic.beyond,
            notes=tuple(offset_notes(topic, partitions, offsets, _numbers(times), loads)),
        )

    return read


def loads_of(path: str, topic: str, commits: Sequence[str]) -> Loads:
    """Reads the commit files of the warehouse at ``path``. InvalidRequestError if there is none."""
    if not commits:
        raise InvalidRequestError(
            f"{path} is no warehouse of {topic}: no load has been committed there. Name the "
            "directory that was given to load_warehouse.py as --warehouse."
        )
    return Loads.from_commits(commits)


def since(tallies: Tallies, since_us: int) -> dict[int, WindowTally]:
    """Returns the tallies of the windows that begin at ``since_us`` or later."""
    return {start: tally for start, tally in tallies.items() if start >= since_us}


def rows_of(path: Path) -> pa.Table:
    """Reads partition, offset and timestamp of all records in a topic's directory of a warehouse.

    A layout may divide by partition or offset, which then stand in the names of directories alone.
    Raises InvalidRequestError for files that no load has written.
    """
    # Imported here: most audits are of no warehouse.
    from pyarrow import dataset

    files = _files(path)
    for file in files:
        if file.suffix not in _SUFFIXES:
            raise InvalidRequestError(
                f"{file} is none of a load's files, whose names end with {' or '.join(_SUFFIXES)}; "
                "move it away."
            )
    rows = pa.concat_tables(
        dataset.dataset(
            [str(file) for file in files if file.suffix == suffix],
            schema=ROW_COLUMNS,
            format=suffix[1:],
            partitioning=dataset.HivePartitioning(ROW_COLUMNS),
            partition_base_dir=str(path),
        ).to_table()
        for suffix in _SUFFIXES
    )
    for name in ROW_COLUMNS.names:
        if rows.column(name).null_count:
            raise InvalidRequestError(
                f"{path} has rows without {name!r}: one of its files is none of a load's; move it "
                "away."
            )
    return rows


def _files(path: Path) -> list[Path]:
    """Returns the files of all records, in any layout; dead letters are in a directory apart."""
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
    """Makes a sentence for each partition with offsets that are there twice, and one for each with
    missing ones."""
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
    """Makes the sentence about ``count`` offsets that are there more than once, some of them with
    their times; none where there is none."""
    if not count:
        return []
    shown = ", ".join(f"{offset:,} (of {show_moment(at)})" for offset, at in some)
    more = f" and {count - len(some):,} more" if count > len(some) else ""
    return [
        f"{topic_partition}: {_offsets(count, 'is', 'are')} in the warehouse more than once: "
        f"{shown}{more}."
    ]


def missing_note(topic_partition: TopicPartition, missing: Sequence[OffsetSpan]) -> list[str]:
    """Makes the sentence about offsets that are not there; none where there is none."""
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
    """Returns the parts of ``spans`` without an offset that is ``there``, in rising order."""
    found: list[OffsetSpan] = []
    for start, end in sorted(spans):
        inside = there[np.searchsorted(there, start) : np.searchsorted(there, end)]
        edges = np.concatenate([[start - 1], inside, [end]])
        gaps = np.flatnonzero(np.diff(edges) > 1)
        found.extend((int(edges[row]) + 1, int(edges[row + 1])) for row in gaps)
    return found


def _offsets(count: int, one: str, many: str) -> str:
    return f"1 offset {one}" if count == 1 else f"{count:,} offsets {many}"
