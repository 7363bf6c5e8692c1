"""Rules of how far consumers see, and who may set them."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_logbus.broker.replica.states import LeaderPartition
from spark_logbus.broker.replica.watermark import HighWatermarks
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.log.replication import LogReplication
from tests.fakes.broker_parts import EPOCH, T0, TOPIC_ID, in_sync_over, logs_in
from tests.fakes.log_directory import ensure_one
from tests.unit.broker.replica.leading import IDS, LEADER, TWO, Leading


def test_what_was_said_of_a_followed_partition_changes_nothing_while_it_is_led() -> None:
    watermarks = HighWatermarks()
    assert watermarks(T0, 10) == 10
    watermarks.follow(T0, 3)
    assert watermarks(T0, 10) == 3
    watermarks.lead(T0, lambda _: 5)
    watermarks.follow(T0, 7)
    assert watermarks(T0, 10) == 5
    watermarks.forget(T0)
    assert watermarks(T0, 10) == 5
    watermarks.hold(T0)
    assert watermarks(T0, 10) == 5
    watermarks.end_lead(T0, is_sole=False)
    assert watermarks(T0, 10) == 0
    watermarks.lead(T0)
    assert watermarks(T0, 10) == 10
    watermarks.follow(T0, 3)
    watermarks.end_lead(T0, is_sole=True)
    assert watermarks(T0, 10) == 10


def test_the_watermark_of_what_is_led_waits_for_its_followers_whatever_comes_late(
    leading: Leading,
) -> None:
    leading.append(3)
    leading.tell_all(2)
    for late in (leading.watermarks.forget, leading.watermarks.hold):
        late(T0)
        leading.append()
        leading.log.advance_high_watermark()
        assert leading.watermark == 2
    leading.tell_all(4)
    assert leading.watermark == 4


def test_a_leader_that_was_restarted_shows_nothing_that_is_not_known_to_be_replicated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush that ends just when the lead is taken moves the watermark, say."""
    watermarks = HighWatermarks()
    with logs_in(tmp_path / "data", watermark=watermarks) as logs:
        leading = Leading(logs, watermarks)
        leading.lead()
        leading.append(5)
        logs.watermark = watermarks = HighWatermarks()
        logs.restart()
        log = ensure_one(logs.directory, T0, topic_id=TOPIC_ID, config={})
        assert log.ends().high_watermark == 5, "it is not led yet"
        begin = LogReplication.begin

        def begin_while_a_flush_ends(self: LogReplication, replicated_end: int | None) -> None:
            begin(self, replicated_end)
            log.advance_high_watermark()

        monkeypatch.setattr(LogReplication, "begin", begin_while_a_flush_ends)
        in_sync = in_sync_over(logs.clock, broker_id=LEADER, watermarks=watermarks)
        members = {each: IDS[each] for each in (LEADER, TWO)}
        state = PartitionState(LEADER, EPOCH + 1, [*members], replicas=members, committed=2)
        led = LeaderPartition(log, EPOCH + 1)
        in_sync.lead(led, state)
        log.advance_high_watermark()
        assert log.ends().high_watermark == 2
        assert in_sync.hidden_until(led) == 5
