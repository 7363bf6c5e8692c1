"""Metrics and health of a broker process, read as Prometheus reads them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from spark_logbus.local.cluster import BrokerProcess
from tests.helpers import wait_until

Labels = frozenset[tuple[str, str]]


Scraped = dict[tuple[str, Labels], float]


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def port_of(broker: BrokerProcess) -> int:
    return int((broker.directory / "data" / "metrics.port").read_text())


def scrape(broker: BrokerProcess) -> Scraped:
    status, text = get(port_of(broker), "/metrics")
    assert status == 200
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(scraped: Scraped, name: str, **labels: str) -> float | None:
    return scraped.get((f"logbus_{name}", frozenset(labels.items())))


def wait_for(broker: BrokerProcess, name: str, expected: float | None, **labels: str) -> Scraped:
    """A scrape in which the metric has come to that value: pages may be a second old."""
    message = f"{name} {labels} to be {expected}"

    def reached() -> Scraped | None:
        scraped = scrape(broker)
        return scraped if value(scraped, name, **labels) == expected else None

    found = wait_until(reached, deadline_s=60, message=message)
    assert found is not None
    return found


def health(port: int) -> tuple[int, dict[str, Any]]:
    status, text = get(port, "/healthz")
    found: dict[str, Any] = json.loads(text)
    return status, found


def wait_for_health(port: int, expected: int) -> dict[str, Any]:
    wait_until(lambda: health(port)[0] == expected, message=f"/healthz to answer {expected}")
    return health(port)[1]
