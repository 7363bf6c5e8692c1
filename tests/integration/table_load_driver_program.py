"""A load into a table in a process of its own that kills itself at a step of its transaction."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from spark_logbus.load import JdbcTable, LoadConfig, run_load
from spark_logbus.load.jdbc.config import properties_of
from spark_logbus.load.jdbc.ledger import Ledger
from spark_logbus.load.jdbc.table import TableTarget
from tests.servers.postgresql import add_driver


def main(zookeeper: str, topic: str, url: str, table: str, step: str, jars: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    add_driver(spark, [Path(jar) for jar in jars.split(os.pathsep)])
    _arm(step)
    target = JdbcTable(url, table, properties_of(None))
    run_load(spark, LoadConfig(topic, target, zookeeper))


def _arm(step: str) -> None:
    # Any, because types rightly have no word for what is done to them here.
    target: Any = TableTarget
    ledger: Any = Ledger
    enter, move = Ledger.enter, TableTarget._move

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def enter_and_die(*given: Any) -> None:
        enter(*given)
        die()

    def move_and_die(*given: Any) -> None:
        move(*given)
        die()

    match step:
        case "staged":
            target.commit = die
        case "locked":
            ledger.enter = enter_and_die
        case "moved":
            target._move = move_and_die
        case "committed":
            target.publish = die
        case _:
            raise AssertionError(step)


if __name__ == "__main__":
    main(*sys.argv[1:])
