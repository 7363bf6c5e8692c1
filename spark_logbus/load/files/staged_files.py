"""Files of a load that are staged: written in a warehouse's layout, then counted and listed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession

from spark_logbus.load.files.hadoop import local_path
from spark_logbus.load.files.local_tally import tally_of_files
from spark_logbus.load.layout import FileFormat, Layout
from spark_logbus.load.tally import TALLIED, Tally, tally_of


def write(
    frame: DataFrame, path: str, layout: Layout, compression: str | None, *, gather: bool = True
) -> None:
    """Add to what is in ``path``, which is made if it is not there.

    To ``gather`` is to have a directory's records in one task and so in one file, unless it is so
    large that Spark splits it; else each task writes files of what it reads.
    """
    columns = layout.partition_columns
    if gather:
        frame = frame.hint("rebalance", *columns)
    writer = frame.write.format(layout.format.value).partitionBy(*columns).mode("append")
    if compression is not None:
        zlib = layout.format is FileFormat.ORC and compression == "gzip"
        writer = writer.option("compression", "zlib" if zlib else compression)
    # Tasks move their files out of Spark's own temporary directory themselves, once: nobody reads
    # this directory before its records are counted, and a second move by the driver, one by one,
    # would make it no safer.
    writer.option("mapreduce.fileoutputcommitter.algorithm.version", "2").save(path)


def list_and_count(
    spark: SparkSession, path: str, layout: Layout, staging: str
) -> tuple[Tally, tuple[str, ...]]:
    """The records that are really there, and their files, from the load's directory on."""
    local = local_path(path)
    if local is not None and not {*TALLIED} & {*layout.partition_columns}:
        found = sorted(_visible(local))
        root = next(each for each in (local, *local.parents) if each.name == staging)
        names = tuple(str(each.relative_to(root)) for each in found)
        return tally_of_files(found, layout.format), names
    read = spark.read.format(layout.format.value).schema(tallied(layout.partition_columns))
    staged = read.load(path)
    # Spark gives whole URLs, in which a directory's name is escaped once more.
    files = (unquote(url).partition(f"/{staging}/")[2] for url in staged.inputFiles())
    return tally_of(staged), tuple(sorted(files))


def _visible(directory: Path) -> Iterator[Path]:
    """The files that readers see, who pass over names that begin with ``_`` or ``.``."""
    for each in directory.iterdir():
        if each.name.startswith(("_", ".")):
            continue
        if each.is_dir():
            yield from _visible(each)
        else:
            yield each


def tallied(partition_columns: Sequence[str]) -> str:
    """DDL of what a tally reads. The names of directories are taken as they are: read as numbers
    or dates they might not all be some."""
    names = (f", `{name}` string" for name in partition_columns if name not in TALLIED)
    return "partition int, offset bigint" + "".join(names)
