from __future__ import annotations

from pathlib import Path

import pytest

from spark_logbus.errors import (
    InvalidRequestError,
    NotLeaderError,
)
from spark_logbus.protocol import (
    Api,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResult,
    SplitRangePartition,
    SplitRangeRequest,
    SplitRangeResponse,
    SplitRangeResult,
)
from tests.fakes.broker_parts import T0, Logs, logs_in, record_batch
from tests.fakes.clock import NOW_US, SECOND
from tests.fakes.log_directory import SlowFollower
from tests.unit.broker.handlers.asking import Asking


def fill(logs: Logs, count: int) -> None:
    log = logs.lead(T0)
    for number in range(count):
        stamp = NOW_US + number * SECOND
        log.append_as_leader(record_batch(timestamps=(stamp, stamp)), leader_epoch=0)
    logs.flush()


def listed(
    asking: Asking, at: str, *, timestamp_us: int = 0, topic: str = "t"
) -> ListOffsetsResult:
    wanted = ListOffsetsPartition(topic, 0, at, timestamp_us)
    response = asking.call(Api.LIST_OFFSETS, ListOffsetsRequest([wanted]))
    assert isinstance(response, ListOffsetsResponse)
    return response.results[0]


def test_offsets_are_listed(asking: Asking) -> None:
    fill(asking.logs, 10)
    log = asking.logs.here.leader_of(T0).log
    log.append_as_leader(record_batch(), leader_epoch=0)  # not flushed
    assert listed(asking, "earliest").offset == 0
    assert listed(asking, "latest").offset == 10
    assert listed(asking, "timestamp", timestamp_us=NOW_US + 3 * SECOND + 1).offset == 4
    assert listed(asking, "timestamp", timestamp_us=NOW_US + 100 * SECOND).offset is None


def test_the_latest_offset_is_the_high_watermark(tmp_path: Path) -> None:
    rule = SlowFollower()
    with logs_in(tmp_path / "data", watermark=rule) as logs:
        asking = Asking(logs)
        asking.peer.handshaken = True
        rule.end = 4
        fill(logs, 10)
        assert listed(asking, "latest").offset == 4
        assert listed(asking, "timestamp", timestamp_us=NOW_US + 3 * SECOND).offset == 3
        assert listed(asking, "timestamp", timestamp_us=NOW_US + 4 * SECOND).offset is None
        asking.executor.stop()


def test_what_is_wrong_with_one_partition_is_its_own(asking: Asking) -> None:
    fill(asking.logs, 1)
    wrong = listed(asking, "yesterday").error
    assert wrong is not None
    assert isinstance(wrong.to_exception(), InvalidRequestError)
    unled = listed(asking, "latest", topic="gone").error
    assert unled is not None
    assert isinstance(unled.to_exception(), NotLeaderError)


def split(asking: Asking, start: int, end: int, target_bytes: int) -> SplitRangeResult:
    wanted = SplitRangePartition("t", 0, start, end, target_bytes)
    response = asking.call(Api.SPLIT_RANGE, SplitRangeRequest([wanted]))
    assert isinstance(response, SplitRangeResponse)
    return response.results[0]


def test_ranges_are_split(asking: Asking) -> None:
    fill(asking.logs, 100)
    whole = split(asking, 0, 100, 1 << 30)
    assert (whole.cuts, whole.size_bytes) == ([], 100 * len(record_batch()))
    halves = split(asking, 0, 100, whole.size_bytes // 2)
    assert len(halves.cuts) == 1
    assert 40 < halves.cuts[0] < 60
    assert split(asking, 0, 100, 0).error is not None


def test_no_range_is_cut_into_more_pieces_than_a_response_holds(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_logbus.broker.handlers.offsets._MAX_CUTS", 5)
    fill(asking.logs, 200)
    assert 3 <= len(split(asking, 0, 200, 1).cuts) <= 6
