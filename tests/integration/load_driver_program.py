"""A load in a process of its own that kills or stops itself at a step; the hooks are in here.

With the step *again and again* it loads until somebody kills it, and says on its standard output
when it begins.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from pyspark.sql import SparkSession

from spark_logbus.errors import LogbusError
from spark_logbus.load import LoadConfig, run_load
from spark_logbus.load.hadoop import HadoopDirectory
from spark_logbus.load.warehouse import Warehouse

DATES_MOVED = 2
AGAIN = "again and again"


def main(zookeeper: str, topic: str, warehouse: str, step: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    config = LoadConfig(topic, warehouse, zookeeper)
    try:
        if step == AGAIN:
            sys.stdout.write("It begins.\n")
            sys.stdout.flush()
            while True:
                run_load(spark, config)
        _arm(step)
        run_load(spark, config)
    except LogbusError as error:
        sys.exit(error.message)


def _arm(step: str) -> None:
    # Any, because types rightly have no word for what is done to them here.
    warehouse: Any = Warehouse
    directory: Any = HadoopDirectory
    rename = HadoopDirectory.rename
    moved = 0

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def die_half_way(self: HadoopDirectory, source: str, target: str) -> None:
        nonlocal moved
        if moved == DATES_MOVED:
            die()
        rename(self, source, target)
        moved += 1

    def stopping(method: str) -> None:
        original = getattr(HadoopDirectory, method)

        def stop(self: HadoopDirectory, *arguments: Any) -> None:
            setattr(HadoopDirectory, method, original)
            os.kill(os.getpid(), signal.SIGSTOP)
            original(self, *arguments)

        setattr(HadoopDirectory, method, stop)

    match step:
        case "write" | "claim":
            stopping(step)
        case "before the commit":
            warehouse.commit = die
        case "before publishing":
            warehouse.publish = die
        case "while publishing":
            directory.rename = die_half_way
        case _:
            raise AssertionError(step)


if __name__ == "__main__":
    main(*sys.argv[1:])
