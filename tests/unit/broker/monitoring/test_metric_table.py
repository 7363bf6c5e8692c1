"""The table of metrics, its page in the documentation, and the rules that are built on it."""

from __future__ import annotations

import re
from pathlib import Path

from spark_logbus.broker.monitoring.metric_table import METRICS, Metric, MetricKind

PAGE = (Path(__file__).parents[4] / "docs" / "operations.md").read_text()
SUFFIXES = {MetricKind.GAUGE: "", MetricKind.COUNTER: "_total", MetricKind.HISTOGRAM: ""}
OF_A_HISTOGRAM = ("_bucket", "_sum", "_count")


def shown(metric: Metric) -> str:
    return f"logbus_{metric.name}{SUFFIXES[metric.kind]}"


def test_names_are_unique_and_follow_prometheus() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    for name in names:
        assert re.fullmatch(r"[a-z][a-z0-9_]*[a-z0-9]", name)
        assert not name.endswith(("_total", "_ms", "_us", "_kb", "_mb"))


def test_whatever_the_page_names_exists() -> None:
    known = {shown(metric) for metric in METRICS}
    known |= {
        f"{shown(metric)}{suffix}"
        for metric in METRICS
        if metric.kind is MetricKind.HISTOGRAM
        for suffix in OF_A_HISTOGRAM
    }
    named = set(re.findall(r"\blogbus_[a-z_]+\b", PAGE))
    assert named <= known, named - known
