"""The tally that is read with Arrow, beside Spark's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_logbus.load import FileFormat
from spark_logbus.load.files.local_tally import tally_of_files
from spark_logbus.load.tally import RecordTally, tally_of


@pytest.mark.parametrize("form", FileFormat)
def test_both_tallies_are_the_same(spark: SparkSession, tmp_path: Path, form: FileFormat) -> None:
    """Covers any partitions and offsets, in several files; tallies differ where one record does."""
    draw = np.random.default_rng(7)
    offsets = [0, 1, (1 << 63) - 1, -1, *map(int, draw.integers(0, 1 << 62, 500))]
    partitions = [0, (1 << 31) - 1, -1, 1, *map(int, draw.integers(0, 1 << 31, 500))]
    rows = list(zip(partitions, offsets, strict=True))
    frame = spark.createDataFrame(rows, "partition int, offset bigint").withColumn("x", F.lit("x"))

    def both(name: str, changed: int) -> tuple[RecordTally, RecordTally]:
        path = tmp_path / name
        other = frame.withColumn("offset", F.col("offset").bitwiseXOR(F.lit(changed)))
        (other if changed else frame).repartition(3).write.format(form.value).save(str(path))
        read = spark.read.format(form.value).load(str(path))
        return tally_of(read), tally_of_files(path.glob("part-*"), form)

    ours, theirs = both("same", 0)
    assert ours == theirs
    assert ours.records == len(rows)
    changed, too = both("changed", 1)
    assert changed == too != ours


def test_the_tally_of_no_files() -> None:
    assert tally_of_files([], FileFormat.PARQUET) == RecordTally(0, 0)
