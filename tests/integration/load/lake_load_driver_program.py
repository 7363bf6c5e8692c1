"""A load into a lake's table, in a process of its own that kills itself at a step."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from spark_logbus.load import LoadConfig, run_load
from spark_logbus.load.lake.target import LakeTarget
from tests.integration.load.loaded_lake import table_named
from tests.servers.driver_session import driver_builder, patient


def main(zookeeper: str, topic: str, form: str, directory: str, name: str, step: str) -> None:
    spark = patient(driver_builder().getOrCreate())
    # Any, because types rightly have no word for what is done to them here.
    target: Any = LakeTarget

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(target, {"written": "commit", "committed": "publish"}[step], die)
    table = table_named(form, Path(directory), name)
    run_load(spark, LoadConfig(topic, table, zookeeper, json_schema="n int", dead_letters=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
