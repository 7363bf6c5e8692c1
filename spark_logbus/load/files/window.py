"""The files of a warehouse that hold records of a window, beside others or alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_logbus.load.commit import DEAD_LETTERS, Commit
from spark_logbus.load.errors import translated
from spark_logbus.load.files.hadoop import local_path
from spark_logbus.load.files.small_files import records_of
from spark_logbus.load.files.staged_files import tallied
from spark_logbus.load.files.warehouse import Warehouse
from spark_logbus.load.layout import Layout
from spark_logbus.load.plan.window_rows import ExistingRows, inside
from spark_logbus.load.tally import NONE, Tally, aggregates, tally_from
from spark_logbus.model import OffsetRange


def find(
    spark: SparkSession, warehouse: Warehouse, last: Commit, ranges: tuple[OffsetRange, ...]
) -> ExistingRows:
    """The files that hold records of ``ranges``, and how many they hold, of them and of others."""
    condition = inside(ranges)
    layout, letters = last.layout, {}
    with translated(f"look for records in the files of {warehouse.path}"):
        records = _tallies_by_file(spark, warehouse.path, "", layout, condition)
        if warehouse.has_dead_letters():
            undivided = layout.undivided
            letters = _tallies_by_file(spark, warehouse.path, DEAD_LETTERS, undivided, condition)
        found = replaced(records, letters)
        kept_records = kept_letters = 0
        if records:
            kept_records = records_of(spark, warehouse, last, found.files).count() - found.records
        if letters:
            kept_letters = letters_of(spark, warehouse, last, found).count() - found.dead_letters
    return replace(found, kept_records=kept_records, kept_letters=kept_letters)


def replaced(records: Mapping[str, Tally], letters: Mapping[str, Tally]) -> ExistingRows:
    """The sum of what files hold of a window, by name (pure)."""
    tally = NONE
    for each in (*records.values(), *letters.values()):
        tally = tally.with_others(each)
    return ExistingRows(
        sum(each.records for each in records.values()),
        sum(each.records for each in letters.values()),
        tally,
        tuple(sorted(records)),
        tuple(sorted(letters)),
    )


def letters_of(
    spark: SparkSession, warehouse: Warehouse, last: Commit, found: ExistingRows
) -> DataFrame:
    """All dead letters of the files that hold some of the window."""
    reader = spark.read.format(last.layout.format.value).option("mergeSchema", "true")
    return reader.load([f"{warehouse.path}/{name}" for name in found.letter_files])


def _tallies_by_file(
    spark: SparkSession, root: str, under: str, layout: Layout, condition: Column
) -> dict[str, Tally]:
    """Of the records that meet the condition, by the name of their file from ``root`` on."""
    reader = spark.read.format(layout.format.value).schema(tallied(layout.partition_columns))
    rows = (
        reader.load(f"{root}/{under}" if under else root)
        .where(condition)
        .groupBy(F.col("_metadata.file_path").alias("file"))
        .agg(*aggregates())
        .collect()
    )
    # Spark gives whole URLs, in which a directory's name is escaped once more.
    path = f"{local_path(root) or root}/"
    return {unquote(row["file"]).partition(path)[2]: tally_from(row.asDict()) for row in rows}
