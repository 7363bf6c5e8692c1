"""A driver with a profile, whose tasks run on workers that have none: it writes, reads, copies by a
stream that it stops and starts again, loads, and reads what it may not read any more.

Arguments: the master's URL, and the directory for all that Spark writes. It tells on its standard
output where it stands, and waits there for a file of that name in the directory.
"""

from __future__ import annotations

import json
import sys
import traceback
import urllib.request
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from spark_logbus.load import LoadConfig, run_load
from tests.helpers import wait_until
from tests.servers.driver_session import patient

OPTIONS = {"profile": "test"}
RECORDS = 90
PER_TRIGGER = "15"
PAGES = ("jobs", "stages", "SQL", "environment", "executors", "StreamingQuery", "storage")
VIEWS = (
    "environment",
    "allexecutors",
    "jobs",
    "stages?details=true&withSummaries=true",
    "sql?details=true&planDescription=true&length=1000",
    "storage/rdd",
)


class Listener(StreamingQueryListener):
    """Keeps what Spark tells of queries."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.batches = 0

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self._note(event)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.batches += 1
        self._note(event.progress.json)

    def onQueryIdle(self, event: object) -> None: ...

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._note(event, event.exception)

    def _note(self, *what: object) -> None:
        with self._file.open("a") as file:
            file.write(f"{what} {[getattr(each, '__dict__', '') for each in what]}\n")


class Program:
    def __init__(self, session: SparkSession, directory: Path) -> None:
        self.session = session
        self.directory = directory
        self.listener = Listener(directory / "listener.txt")
        session.streams.addListener(self.listener)

    def waits_at(self, place: str) -> None:
        tell("AT", place)
        wait_until((self.directory / place).exists, deadline_s=240, message=place)

    def write(self) -> None:
        rows = [(f"{number:04}",) for number in range(RECORDS)]
        frame = self.session.createDataFrame(rows, ["value"]).repartition(4)
        binary = frame.selectExpr("cast(value as binary) as value")
        binary.write.format("logbus").options(**OPTIONS).mode("append").save("t")

    def read(self, topic: str) -> DataFrame:
        return self.session.read.format("logbus").options(**OPTIONS).load(topic)

    def copy(self, **trigger: Any) -> StreamingQuery:
        source = self.session.readStream.format("logbus").options(
            **OPTIONS, startingOffsets="earliest", maxPrefetchBytes="0",
            maxOffsetsPerTrigger=PER_TRIGGER,
        )  # fmt: skip
        sink = (
            source.load("t").select("value").writeStream.format("logbus").options(**OPTIONS)
            .option("topic", "copy")
            .option("checkpointLocation", str(self.directory / "checkpoint"))
        )  # fmt: skip
        return sink.trigger(**trigger).start()

    def copy_with_a_worker_killed(self) -> None:
        query = self.copy(processingTime="0 seconds")
        wait_until(lambda: self.listener.batches >= 2, deadline_s=240, message="two micro-batches")
        self.waits_at("worker-killed")
        seen = self.listener.batches
        wait_until(lambda: self.listener.batches > seen, deadline_s=240, message="another one")
        query.stop()
        query = self.copy(availableNow=True)
        query.awaitTermination()
        progress = [str(each) for each in query.recentProgress]
        (self.directory / "progress.txt").write_text("\n".join([str(query.status), *progress]))

    def show(self) -> None:
        frame = self.read("t")
        frame.explain(extended=True)
        frame.explain(mode="formatted")
        tell("SHOWN", frame.schema, repr(frame), str(frame._jdf.queryExecution().toString()))

    def keep_pages(self) -> None:
        address = self.session.sparkContext.uiWebUrl
        application = self.session.sparkContext.applicationId
        urls = [f"api/v1/applications/{application}/{each}" for each in VIEWS]
        urls += [f"{each}/" for each in PAGES]
        with urllib.request.urlopen(f"{address}/{urls[4]}") as response:
            urls += [f"SQL/execution/?id={each['id']}" for each in json.load(response)]
        for number, url in enumerate(urls):
            with urllib.request.urlopen(f"{address}/{url}") as response:
                (self.directory / f"page-{number}.txt").write_bytes(response.read())

    def fail(self) -> str:
        """Reads what may not be read any more when the tasks begin."""
        frame = self.read("copy")
        self.waits_at("revoked")
        try:
            frame.collect()
        except PySparkException as error:
            traceback.print_exc()
            return str(error)
        return ""


def values(frame: DataFrame) -> list[str]:
    return sorted(row.value.decode() for row in frame.select("value").collect())


def tell(*what: object) -> None:
    sys.stdout.write(f"{' '.join(map(str, what))}\n")
    sys.stdout.flush()


def main(master: str, directory: Path) -> None:
    (directory / "events").mkdir()
    session = patient(
        SparkSession.builder.master(master)
        .config("spark.driver.memory", "512m")
        .config("spark.executor.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "true")
        .config("spark.ui.port", "0")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", (directory / "events").as_uri())
        .getOrCreate()
    )
    program = Program(session, directory)
    program.write()
    program.show()
    found: dict[str, object] = {"read": values(program.read("t"))}
    program.copy_with_a_worker_killed()
    found["copied"] = values(program.read("copy"))
    run_load(session, LoadConfig("t", str(directory / "warehouse"), "profile:test"))
    found["loaded"] = values(session.read.parquet(str(directory / "warehouse" / "t")))
    found["failure"] = program.fail()
    program.keep_pages()
    tell("RESULT", json.dumps(found))
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
