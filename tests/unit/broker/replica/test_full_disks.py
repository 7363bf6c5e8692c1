"""Leads that are to go to other brokers, as the disk of this one is full for good."""

from __future__ import annotations

import errno
from pathlib import Path

from spark_logbus.broker.replica.full_disks import FullDisks
from spark_logbus.broker.replica.states import LeaderPartition
from tests.fakes.broker_parts import T0, T1, Logs, logs_in


def refuses(logs: Logs, led: LeaderPartition) -> None:
    log = led.log
    error = OSError(errno.ENOSPC, "No space left on device")
    now = logs.clock.monotonic()
    logs.directory.stats.refused.note(
        log.topic_partition, log.directory, error, size_bytes=1, now=now
    )


def has_room(logs: Logs) -> None:
    logs.clock.advance(10)
    logs.directory.maintain()


def test_a_lead_is_given_away_once_its_disk_has_refused_for_a_while(tmp_path: Path) -> None:
    with logs_in(tmp_path / "data") as logs:
        full = FullDisks(logs.clock)
        logs.lead(T0)
        logs.lead(T1)
        all_led = logs.here.led
        assert full.due(all_led) == {}
        refuses(logs, all_led[T0])
        assert full.due(all_led) == {}
        logs.clock.advance(4)
        assert full.due(all_led) == {}, "retention may make room"
        logs.clock.advance(1)
        assert full.due(all_led) == {T0: 0}
        assert full.due(all_led) == {}


def test_one_that_had_room_again_in_time_is_kept(tmp_path: Path) -> None:
    with logs_in(tmp_path / "data") as logs:
        full = FullDisks(logs.clock)
        logs.lead(T0)
        refuses(logs, logs.here.led[T0])
        full.due(logs.here.led)
        has_room(logs)
        assert logs.here.led[T0].log.refusing is None
        assert full.due(logs.here.led) == {}
        refuses(logs, logs.here.led[T0])
        assert full.due(logs.here.led) == {}
        logs.clock.advance(5)
        assert full.due(logs.here.led) == {T0: 0}


def test_a_lead_that_comes_back_to_a_full_disk_goes_less_and_less_often(tmp_path: Path) -> None:
    """The lead would go round and round where all disks are full."""
    with logs_in(tmp_path / "data") as logs:
        full = FullDisks(logs.clock)
        logs.lead(T0)
        led = logs.here.led[T0]
        refuses(logs, led)
        gone: list[int] = []
        for second in range(1_200):
            if full.due({T0: led} if not gone or second - gone[-1] > 1 else {}):
                gone.append(second)
            logs.clock.advance(1)
        assert 10 <= len(gone) <= 30
        assert gone[-1] - gone[-2] >= 60
