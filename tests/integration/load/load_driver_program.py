"""A load, or a reprocessing, in a process that kills or stops itself at a step; with the hooks.

With the step *again and again* it loads until somebody kills it, and says on its standard output
when it begins.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from spark_logbus.errors import LogbusError
from spark_logbus.load import LoadConfig, ReprocessConfig, run_load, run_reprocess
from spark_logbus.load.files.hadoop import HadoopDirectory
from spark_logbus.load.files.warehouse import Warehouse
from tests.servers.driver_session import driver_builder, patient

DONE_BEFORE = 2
AGAIN = "again and again"


def main(zookeeper: str, topic: str, warehouse: str, step: str, start: str | None = None) -> None:
    """``start`` says where the window begins that is reprocessed instead of a load."""
    spark = patient(driver_builder().getOrCreate())
    config = LoadConfig(topic, warehouse, zookeeper)
    try:
        if step == AGAIN:
            sys.stdout.write("It begins.\n")
            sys.stdout.flush()
            while True:
                run_load(spark, config)
        _arm(step)
        if start is None:
            run_load(spark, config)
        else:
            again = ReprocessConfig(
                topic=topic, warehouse=warehouse, zookeeper=zookeeper, start=start,
                json_schema="n int",
            )  # fmt: skip
            run_reprocess(spark, again)
    except LogbusError as error:
        sys.exit(error.message)


def _arm(step: str) -> None:
    # Any, because types rightly have no word for what is done to them here.
    warehouse: Any = Warehouse

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def dying_half_way(method: str) -> None:
        original, done = getattr(HadoopDirectory, method), 0

        def go_on(self: HadoopDirectory, *arguments: Any) -> None:
            nonlocal done
            if done == DONE_BEFORE:
                die()
            original(self, *arguments)
            done += 1

        setattr(HadoopDirectory, method, go_on)

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
        case "while deleting":
            dying_half_way("delete")
        case "while publishing":
            dying_half_way("rename")
        case _:
            raise AssertionError(step)


if __name__ == "__main__":
    main(*sys.argv[1:])
