"""Counts a data frame's records by window of their time, as ``audit.counts`` does, with Spark."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_logbus.audit.counts import WindowTally, as_tally

_WITHIN = "within_us"
_WINDOW = "window_us"


def tallies_of(frame: DataFrame, *, window_us: int) -> dict[int, WindowTally]:
    """Counts the records by the window that their ``timestamp`` is in, under its start."""
    at = F.unix_micros("timestamp")
    within = F.pmod(at, F.lit(window_us))
    total = F.sum(F.col(_WITHIN).cast("decimal(20,0)"))  # which a sum of longs could exceed
    rows = (
        frame.select((at - within).alias(_WINDOW), within.alias(_WITHIN))
        .groupBy(_WINDOW)
        .agg(F.count(F.lit(1)).alias("records"), total.alias("time_sum"))
        .collect()
    )
    return {row[_WINDOW]: as_tally(row["records"], row["time_sum"]) for row in rows}
