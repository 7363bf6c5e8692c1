"""A Spark session with a Hive metastore of its own, in a process that does what its input says.

A line of JSON for each: ``{"load": {...}}`` with the fields of a load's configuration,
``{"reprocess": {...}}`` with those of a reprocessing's, ``{"sql": "..."}``, ``{"die": "..."}`` to
kill this process before the first statement with that text. The answers are lines of JSON too:
``{"answer": ...}`` or ``{"error": [class, message]}``.

The metastore is Derby's, in the working directory, and so is all that Derby leaves. A session
without Hive can't be in the same JVM, hence not in the process of the tests.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_logbus.errors import LogbusError
from spark_logbus.load import (
    FileFormat,
    LayoutChoice,
    LoadConfig,
    Period,
    ReprocessConfig,
    run_load,
    run_reprocess,
)
from tests.servers.driver_session import driver_builder, patient


def main(*settings: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints
    builder = driver_builder().config("spark.driver.memory", "768m")
    for setting in settings:
        builder = builder.config(*setting.split("=", 1))
    spark = patient(builder.enableHiveSupport().getOrCreate())
    spark.sparkContext.setLogLevel("OFF")
    for line in sys.stdin:
        try:
            said = {"answer": _answer(spark, json.loads(line))}
        except (LogbusError, PySparkException) as error:
            said = {"error": [type(error).__name__, str(error)]}
        print(json.dumps(said, default=str), file=answers, flush=True)
    spark.stop()


def _answer(spark: SparkSession, asked: dict[str, Any]) -> Any:
    match asked:
        case {"sql": statement}:
            return [list(row) for row in spark.sql(statement).collect()]
        case {"load": fields}:
            layout = fields.pop("layout", {})
            for name, kind in (("period", Period), ("format", FileFormat), ("columns", tuple)):
                if name in layout:
                    layout[name] = kind(layout[name])
            config = LoadConfig(**fields, layout=LayoutChoice(**layout))
            return run_load(spark, config).to_json()
        case {"reprocess": fields}:
            return run_reprocess(spark, ReprocessConfig(**fields)).to_json()
        case {"die": statement}:
            _die_before(statement)
            return None
    raise AssertionError(asked)


def _die_before(statement: str) -> None:
    # Any, because types rightly have no word for what is done to it here.
    session: Any = SparkSession
    sql = SparkSession.sql

    def dying(self: SparkSession, text: str, *rest: Any, **more: Any) -> Any:
        if statement in text:
            os.kill(os.getpid(), signal.SIGKILL)
        return sql(self, text, *rest, **more)

    session.sql = dying


if __name__ == "__main__":
    main(*sys.argv[1:])
