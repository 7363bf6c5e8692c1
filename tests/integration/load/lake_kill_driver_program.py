"""Loads, compactions and reprocessings of tables of a lake, of both formats in turn and without a
lock, until somebody kills the process. Begins when a line comes to its standard input."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from spark_logbus.errors import LogbusError
from spark_logbus.load import LoadConfig, ReprocessConfig, reprocess, run_load, run_reprocess
from spark_logbus.load import run as load_run
from tests.integration.load.loaded_lake import FORMATS, table_named
from tests.integration.load.loaded_table import NoLock
from tests.servers.driver_session import driver_builder, patient


def main(zookeeper: str, topic: str, directory: str, name: str, seed: str) -> None:
    spark = patient(driver_builder().getOrCreate())
    spark.range(1).collect()
    dice = random.Random(int(seed))
    # Any, because types rightly have no word for what is done to them here.
    jobs: Any = (load_run, reprocess)
    for job in jobs:
        job.Lock = NoLock
    sys.stdin.readline()
    sys.stdout.write("It begins.\n")
    sys.stdout.flush()
    try:
        while True:
            form = dice.choice(FORMATS)
            table = table_named(form, Path(directory) / form, name)
            decode: dict[str, Any] = {"json_schema": "n int", "dead_letters": True}
            if dice.random() < 0.7:
                compact = dice.choice([None, 2, 4])
                run_load(spark, LoadConfig(topic, table, zookeeper, compact=compact, **decode))
                continue
            start = json.dumps({topic: {each: dice.randrange(60) for each in ("0", "1")}})
            run_reprocess(
                spark,
                ReprocessConfig(
                    topic=topic, warehouse=table, zookeeper=zookeeper, start=start, **decode
                ),
            )
    except LogbusError as error:
        sys.exit(error.message)


if __name__ == "__main__":
    main(*sys.argv[1:])
