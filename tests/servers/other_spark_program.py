"""Program that runs SQL in the Spark that it finds, told on standard input, and prints the rows."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def _main() -> None:
    settings, statements = json.load(sys.stdin)
    builder = SparkSession.builder.master("local[2]").appName("other")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        **settings,
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    rows = [[[*row] for row in spark.sql(each).collect()] for each in statements]
    print(json.dumps(rows, default=str))  # noqa: T201 - what the caller reads
    spark.stop()


if __name__ == "__main__":
    _main()
