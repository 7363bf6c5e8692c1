"""What the driver says of a write that failed."""

from __future__ import annotations

import logging

import pytest

from spark_logbus.client import Bootstrap
from spark_logbus.model import TopicPartition
from spark_logbus.sink.columns import SinkColumns
from spark_logbus.sink.options import parse_options
from spark_logbus.sink.task import Appended
from spark_logbus.sink.writer import LogbusBatchWriter, LogbusStreamWriter, TaskAppends, WritePlan


@pytest.fixture
def plan() -> WritePlan:
    given = {"topic": "t", "zookeeper": "h:1", "delivery": "at-least-once"}
    options = parse_options(given, overwrite=False)
    return WritePlan(
        options, SinkColumns(("value",), has_topic=False, has_partition=False), Bootstrap.of("h:1")
    )


def test_a_write_that_was_refused_warns_of_nothing(
    plan: WritePlan, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        LogbusBatchWriter(plan).abort([None, None])
        LogbusStreamWriter(plan).abort([TaskAppends({})], 7)
    assert caplog.messages == []


def test_a_write_that_failed_half_way_warns_of_what_is_there(
    plan: WritePlan, caplog: pytest.LogCaptureFixture
) -> None:
    done = TaskAppends({TopicPartition("t", n): Appended(5, 0, 5) for n in (0, 1)})
    with caplog.at_level(logging.WARNING):
        LogbusStreamWriter(plan).abort([done, None], 7)
    (said,) = caplog.messages
    assert "micro-batch 7 failed, but tasks of it that ended have appended 10 records to 2" in said
    assert "or more" not in said
