"""A web server's access log as it is: loaded by the hour of its own times, counted by a script."""

from __future__ import annotations

import datetime as dt
import random
import re
from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession

from spark_logbus.load import LayoutChoice, LoadConfig, Period, run_load
from tests.servers.cluster import Logbus

LINES = 3_000
BROKEN = "GET / HTTP/1.1 without anything else"
EVENT_TIME = (
    r"try_to_timestamp(regexp_extract(cast(value as string), '\\[(.+?)\\]', 1), "
    "'dd/MMM/yyyy:HH:mm:ss Z')"
)
#: The parser of the script, of which Spark knows nothing.
LINE = re.compile(r'\S+ \S+ \S+ \[([^\]]+)\] "[^"]*" (\d{3}) (?:\d+|-)')


def access_log() -> list[str]:
    """Lines in the combined format of Apache's web server, over two days in two time zones, a few
    of them late by hours."""
    draw = random.Random(2013)
    moment = dt.datetime(2015, 5, 17, 8, 5, tzinfo=dt.UTC)
    lines = []
    for number in range(LINES):
        moment += dt.timedelta(seconds=draw.randint(0, 110))
        late = dt.timedelta(hours=draw.randint(1, 9) if number % 97 == 0 else 0)
        zone = dt.timezone(dt.timedelta(hours=draw.choice((0, -7))))
        time = (moment - late).astimezone(zone).strftime("%d/%b/%Y:%H:%M:%S %z")
        status = draw.choices((200, 304, 404, 500), (90, 5, 4, 1))[0]
        client = ".".join(str(draw.randint(1, 254)) for _ in range(4))
        size = draw.randint(0, 90_000) or "-"
        lines.append(
            f'{client} - - [{time}] "GET /{draw.choice(("", "a", "ü"))} HTTP/1.1" {status} {size} '
            '"-" "Mozilla/5.0 (X11; \\"Linux\\")"'
        )
    lines[1_000] = BROKEN
    return lines


def counted(lines: list[str]) -> Counter[tuple[str, int, str]]:
    """Requests by date, hour and status, of lines that have them."""
    counts: Counter[tuple[str, int, str]] = Counter()
    for line in lines:
        if found := LINE.match(line):
            time = dt.datetime.strptime(found[1], "%d/%b/%Y:%H:%M:%S %z").astimezone(dt.UTC)
            counts[str(time.date()), time.hour, found[2]] += 1
    return counts


def test_counts_by_hour_and_status_are_those_of_a_script(
    spark: SparkSession, logbus: Logbus, tmp_path: Path
) -> None:
    lines = access_log()
    topic = logbus.topic(partitions=2)
    layout = LayoutChoice(period=Period.HOUR, event_time=EVENT_TIME)
    without_time = 0
    for start in (0, LINES // 2):  # the second load brings lines of the first one's hours
        for partition in (0, 1):
            part = lines[start + partition : start + LINES // 2 : 2]
            logbus.produce(topic, part, partition=partition, timestamp_us=0)
        loaded = run_load(spark, LoadConfig(topic, str(tmp_path), logbus.zookeeper, layout=layout))
        without_time += loaded.without_event_time
    assert without_time == 1
    table = spark.read.parquet(str(tmp_path / topic))
    by_hour = table.where("date is not null").selectExpr(
        "cast(date as string) as date",
        "hour",
        r"""regexp_extract(cast(value as string), '" (\\d{3}) ', 1) as status""",
    )
    counts = {
        (row["date"], row["hour"], row["status"]): row["count"]
        for row in by_hour.groupBy("date", "hour", "status").count().collect()
    }
    assert counts == counted(lines)
    assert len({(date, hour) for date, hour, _ in counts}) > 40
    broken = table.where("date is null").selectExpr("cast(value as string)").collect()
    assert [row[0] for row in broken] == [BROKEN]
