"""Publishes made-up page views and clicks, as they would come from the browsers of a web site.

Events are in the order in which they arrive, which is not that in which they happened: most come
within seconds, some minutes late, and some so late that nobody waits for them. Some come twice, as
a browser sends again what it saw no answer for. The same seed gives the same events.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from spark_logbus.client import Admin, Cluster, Producer
from spark_logbus.errors import LogbusError
from spark_logbus.zookeeper import add_cluster_options

SCHEMAS = Path(__file__).parents[2] / "conf" / "clickstream"
START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
TOPICS = {
    "views": "view",
    "clicks": "click",
    "page-counts": "page_count",
    "click-through": "click_through",
}
"""Each with its schema: two that are published, and two for the results of jobs/clickstream.py."""

# How often a page is viewed, beside the others, and how many of its views are clicked.
PAGES = {
    "/": (40, 0.30),
    "/offers": (20, 0.42),
    "/shoes": (14, 0.21),
    "/coats": (10, 0.18),
    "/gifts": (8, 0.35),
    "/help": (5, 0.06),
    "/terms": (1, 0.01),
}
VIEWS_PER_S = 4.0
AT_ONCE = 5_000  # records that are handed over together


@dataclass(frozen=True)
class Event:
    topic: str
    visitor: str
    arrives: datetime
    value: dict[str, Any]


def make_events(
    views: int, *, seed: int = 1, start: datetime = START, views_per_s: float = VIEWS_PER_S
) -> list[Event]:
    """Returns ``views`` views with their clicks, late ones and repetitions, in order of arrival."""
    made = _events(views, random.Random(seed), start, views_per_s)
    return sorted(made, key=lambda event: (event.arrives, event.topic, event.value["view_id"]))


def _events(
    views: int, chance: random.Random, start: datetime, views_per_s: float
) -> Iterator[Event]:
    pages = list(PAGES)
    weights = [weight for weight, _ in PAGES.values()]
    moment = start
    for number in range(views):
        moment += _seconds(chance.expovariate(views_per_s))
        [page] = chance.choices(pages, weights)
        visitor = f"visitor-{chance.randrange(max(10, views // 5))}"
        view = {"view_id": f"{start:%Y%m%d%H%M}-{number:07}", "page": page, "visitor": visitor}
        yield from _arrivals("views", visitor, {**view, "at": moment}, chance)
        if chance.random() < PAGES[page][1]:
            thought = chance.expovariate(1 / 40)
            if chance.random() < 0.05:
                thought += 600  # came back to the page after lunch: no click of this view
            click = {"view_id": view["view_id"], "at": moment + _seconds(thought)}
            yield from _arrivals("clicks", visitor, click, chance)


def _arrivals(
    topic: str, visitor: str, value: dict[str, Any], chance: random.Random
) -> Iterator[Event]:
    kind = chance.random()
    if kind < 0.003:
        delay = chance.uniform(2_400, 5_400)  # a phone that was switched off
    elif kind < 0.03:
        delay = chance.uniform(30, 480)  # a train in a tunnel
    else:
        delay = chance.expovariate(1.0)
    arrives = value["at"] + _seconds(delay)
    yield Event(topic, visitor, arrives, value)
    if chance.random() < 0.02:
        yield Event(topic, visitor, arrives + _seconds(chance.uniform(0.5, 30)), value)


def _seconds(seconds: float) -> timedelta:
    return timedelta(microseconds=round(seconds * 1_000_000))


def create_topics(cluster: Cluster, *, partitions: int) -> None:
    """Creates the topics that are not there yet, with their schemas."""
    for topic, schema in TOPICS.items():
        text = (SCHEMAS / f"{schema}.avsc").read_text()
        Admin(cluster).create_topic(
            topic, partitions=partitions, value_schema=text, if_not_exists=True
        )


def publish(cluster: Cluster, events: list[Event]) -> None:
    """Sends the events; all are flushed when this returns. The visitor is the key, so that what one
    visitor does stays in order."""
    with Producer(cluster) as producer:
        for start in range(0, len(events), AT_ONCE):
            piece = events[start : start + AT_ONCE]
            for topic in ("views", "clicks"):
                ours = [event for event in piece if event.topic == topic]
                producer.send_many(
                    topic,
                    [event.value for event in ours],
                    keys=[event.visitor.encode() for event in ours],
                )
        producer.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--views", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--start", type=datetime.fromisoformat, default=START, help="the first view, in ISO 8601"
    )
    parser.add_argument("--partitions", type=int, default=2, help="of topics that are created")
    add_cluster_options(parser, default=None)
    options = parser.parse_args()
    start = options.start if options.start.tzinfo else options.start.replace(tzinfo=UTC)
    events = make_events(options.views, seed=options.seed, start=start)
    try:
        with Cluster.from_zookeeper(options.zookeeper) as cluster:
            create_topics(cluster, partitions=options.partitions)
            publish(cluster, events)
    except LogbusError as error:
        print(f"Nothing more was published: {error}")
        return 1
    clicks = sum(event.topic == "clicks" for event in events)
    print(
        f"Published {len(events) - clicks:,} views and {clicks:,} clicks of "
        f"{start.isoformat()} and later, with late ones and repetitions."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
