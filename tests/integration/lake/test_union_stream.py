"""A table's rows, and the stream that begins where they end."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import functions as F

from spark_logbus.errors import ConfigError
from tests.integration.lake.loaded_target import LoadedTarget, Row, columns_of, rows
from tests.integration.load.test_values import FARE, datum
from tests.servers.spark import Streams, finish

COLUMNS = ("partition", "offset", "n")


def streamed(streams: Streams) -> list[Row]:
    """Rows that the last query has brought, in the order of their offsets."""
    return sorted(tuple(row[name] for name in COLUMNS) for row in streams.rows)


def test_history_and_stream_are_the_topic(job: LoadedTarget, streams: Streams) -> None:
    """Loads and reprocessing in between move nothing from the one into the other."""
    job.decoding = {"json_schema": "n int", "dead_letters": True}
    job.produce_numbers(3)
    job.produce("bad")
    job.load()
    job.produce("worse")
    job.produce('{"n": 3}', partition=1)
    history, stream = job.stream()
    assert columns_of(history) == columns_of(stream)
    job.load()
    job.produce('{"n": 5}')
    job.load()
    first = [(partition, n, n) for partition in (0, 1) for n in range(3)]
    assert rows(history, *COLUMNS) == first
    finish(streams.start(stream))
    assert streamed(streams) == [(0, 5, 5), (1, 3, 3)]
    job.produce('{"n": 4}', partition=1)
    finish(streams.start(stream))
    assert streamed(streams) == [(1, 4, 4)]


@pytest.mark.long
def test_avro_values_of_the_stream_are_decoded(files: LoadedTarget, streams: Streams) -> None:
    """Runs in a session whose zone is another than UTC."""
    files.decoding = {"avro_schema": json.dumps(FARE), "dead_letters": True, "drop_value": True}
    files.produce_bytes([datum("JFK-LAX", 9900, 86_400_000)])
    files.load()
    files.produce_bytes([datum("EWR-SFO", 1, 86_400_000), b"\x02", None])
    stream = files.stream(columns=["partition", "offset", "cents", "route", "at"]).stream
    at_us = stream.withColumn("n", F.concat_ws(" ", "route", "cents", F.unix_micros("at")))
    finish(streams.start(at_us))
    assert streamed(streams) == [(0, 1, "EWR-SFO 1 86400000000"), (0, 3, "")]


def test_before_a_first_load_the_stream_begins_where_the_log_does(
    files: LoadedTarget, streams: Streams
) -> None:
    files.decoding = {"json_schema": "n int"}
    files.produce_numbers(2)
    history, stream = files.stream(
        columns=["n", "offset", "partition", "date"], options={"maxOffsetsPerTrigger": "1"}
    )
    assert rows(history) == []
    assert history.columns == stream.columns == ["n", "offset", "partition", "date"]
    finish(streams.start(stream))
    assert streamed(streams) == [(0, 0, 0), (0, 1, 1), (1, 0, 0), (1, 1, 1)]
    assert len(streams.tasks) > 1


def test_options_that_follow_from_the_table_are_refused(files: LoadedTarget) -> None:
    files.produce("a")
    starts = json.dumps({files.topic: {"0": 0}})
    for name in ("startingOffsets", "subscribe", "STARTINGOFFSETS"):
        with pytest.raises(ConfigError, match=f"options names {name}, which follows from"):
            files.stream(options={name: starts})
