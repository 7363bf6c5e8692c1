"""The tally of files on this machine's own disk, read with Arrow.

Spark counts the same in a job of its own, which takes it a second for a few files: it plans and
compiles what is read here at once. It is the same check: the columns ``partition`` and ``offset``
of all records of all files, as they are on disk, under the same hash.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyarrow import orc
from pyarrow import parquet as pq

from spark_logbus.load.arrow_tally import ArrowTally
from spark_logbus.load.layout import FileFormat
from spark_logbus.load.tally import TALLIED, RecordTally


def tally_of_files(files: Iterable[Path], form: FileFormat) -> RecordTally:
    """Tallies the records of ``files``. Raises OSError and pa.ArrowException."""
    tally = ArrowTally()
    for file in files:
        for batch in _batches(file, form):
            tally.add(batch)
    return tally.tally


def _batches(file: Path, form: FileFormat) -> Iterator[pa.RecordBatch]:
    if form is FileFormat.PARQUET:
        with pq.ParquetFile(file) as opened:
            yield from opened.iter_batches(columns=[*TALLIED])
    else:
        read = orc.ORCFile(file)
        for stripe in range(read.nstripes):
            yield read.read_stripe(stripe, columns=[*TALLIED])
