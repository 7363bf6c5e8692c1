"""A load into a table, or a reprocessing, in a process of its own that kills itself at a step of
its transaction."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from spark_logbus.load import JdbcTable, LoadConfig, ReprocessConfig, run_load, run_reprocess
from spark_logbus.load.config import properties_of
from spark_logbus.load.jdbc.ledger import Ledger
from spark_logbus.load.jdbc.staging import StagingTables
from spark_logbus.load.jdbc.target import TableTarget
from tests.servers.driver_session import driver_builder, patient
from tests.servers.postgresql import add_driver


def main(
    zookeeper: str, topic: str, url: str, table: str, step: str, jars: str, start: str | None = None
) -> None:
    """``start`` says where the window begins that is reprocessed instead of a load."""
    spark = patient(driver_builder().getOrCreate())
    add_driver(spark, [Path(jar) for jar in jars.split(os.pathsep)])
    _arm(step)
    target = JdbcTable(url, table, properties_of(None))
    if start is None:
        run_load(spark, LoadConfig(topic, target, zookeeper))
    else:
        again = ReprocessConfig(
            topic=topic, warehouse=target, zookeeper=zookeeper, start=start,
            json_schema="note string", dead_letters=True,
        )  # fmt: skip
        run_reprocess(spark, again)


def _arm(step: str) -> None:
    # Any, because types rightly have no word for what is done to them here.
    target: Any = TableTarget
    ledger: Any = Ledger
    tables: Any = StagingTables

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def dying_after(kind: Any, method: str) -> None:
        original = getattr(kind, method)

        def do_and_die(*given: Any) -> None:
            original(*given)
            die()

        setattr(kind, method, do_and_die)

    match step:
        case "staged":
            target.commit = die
        case "locked":
            dying_after(ledger, "enter")
        case "cleared":
            dying_after(tables, "clear")
        case "moved":
            dying_after(tables, "move")
        case "committed":
            target.publish = die
        case _:
            raise AssertionError(step)


if __name__ == "__main__":
    main(*sys.argv[1:])
