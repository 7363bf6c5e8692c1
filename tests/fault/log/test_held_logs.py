"""Nothing is deleted from a log before its topic's own configuration is known in this run."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_logbus.errors import ConfigError
from spark_logbus.log import CompactionPlan, LogConfig
from spark_logbus.log.disk import names
from spark_logbus.log.disk.checksummed_file import checksummed_file
from tests.builders.producers import append, batch
from tests.builders.record_batches import record_batch
from tests.fakes.compaction import keyed, write_cleaned
from tests.fakes.disk import SimulatedDisk
from tests.fakes.log_directory import TOPIC_ID, TP, Broker, ensure_one, offsets_from
from tests.fault.log.test_crash_points import every_crash

DAY = 24 * 3600
FOREVER = {"retention.ms": "-1", "retention.bytes": "-1"}
CONFIG = LogConfig(segment_bytes=1024, retention_ms=DAY * 1000, retention_bytes=2500)
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


def told(broker: Broker, config: dict[str, str]) -> None:
    ensure_one(broker.directory, TP, topic_id=TOPIC_ID, config=config)


def broker_with(config: dict[str, str], *, count: int = 8) -> Broker:
    """Two segments' worth of records for each of some, under the topic's configuration."""
    broker = Broker(files=SimulatedDisk(), config=CONFIG)
    told(broker, config)
    broker.append(*(keyed(2, b"%03d" % number + bytes(400)) for number in range(count)))
    return broker


def disk_of(broker: Broker) -> SimulatedDisk:
    assert isinstance(broker.files, SimulatedDisk)
    return broker.files


def close(broker: Broker) -> None:
    broker.directory.close()


def kill(broker: Broker) -> None:
    disk_of(broker).kill()


def cut_power(broker: Broker) -> None:
    disk_of(broker).crash()


def lose_the_file(broker: Broker) -> None:
    """Leaves the directories as a release before this file did."""
    close(broker)
    disk_of(broker).remove(broker.log_path() / names.TOPIC_CONFIG)


ENDS = pytest.mark.parametrize("end", [close, kill, cut_power, lose_the_file])


def start_offset(broker: Broker) -> int:
    broker.directory.maintain()
    log = broker.directory.get(TP)
    assert log is not None
    return log.ends().log_start_offset


@ENDS
def test_a_start_deletes_nothing_before_the_topic_is_known(end: Callable[[Broker], None]) -> None:
    broker = broker_with(FOREVER)
    broker.clock.advance(30 * DAY)
    end(broker)
    broker.start(told=False)
    for _ in range(3):
        assert start_offset(broker) == 0
        broker.clock.advance(10 * DAY)
    told(broker, FOREVER)
    assert start_offset(broker) == 0
    assert offsets_from(broker.log(), 0) == [*range(0, 16, 2)]
    told(broker, {})
    assert start_offset(broker) == 16


@ENDS
def test_a_start_compacts_nothing_before_the_topic_is_known(end: Callable[[Broker], None]) -> None:
    broker = broker_with(COMPACTED)
    end(broker)
    broker.start(told=False)
    log = broker.directory.get(TP)
    assert log is not None
    assert log.compaction.select_segments(broker.clock.now_us()) is None
    assert log.compaction.plan(broker.clock.now_us()) is None
    told(broker, COMPACTED)
    assert log.compaction.plan(broker.clock.now_us()) is not None


def test_silent_producers_are_kept_until_the_topic_is_known() -> None:
    broker = broker_with({"producer.id.expiration.ms": str(90 * DAY * 1000), **FOREVER}, count=0)
    said = batch(0)
    there = append(broker.log(), said)
    lose_the_file(broker)
    broker.start(told=False)
    broker.clock.advance(30 * DAY)
    assert start_offset(broker) == 0
    log = broker.directory.get(TP)
    assert log is not None
    assert append(log, batch(0)) == there
    assert log.ends().log_end_offset == 1


@pytest.mark.parametrize("end", [close, kill, cut_power])
def test_the_last_configuration_counts_from_the_start(end: Callable[[Broker], None]) -> None:
    config = {"segment.bytes": "4096", "flush.policy": "os", "cleanup.policy": "compact, delete"}
    broker = broker_with(config)
    end(broker)
    broker.start(told=False)
    log = broker.directory.get(TP)
    assert log is not None
    assert log.config == LogConfig.from_topic_config(config, CONFIG)
    assert log.kept_config == config
    told(broker, {})
    close(broker)
    broker.start(told=False)
    log = broker.directory.get(TP)
    assert log is not None
    assert log.config == CONFIG


def test_a_topic_without_settings_costs_no_file() -> None:
    broker = broker_with({})
    assert names.TOPIC_CONFIG not in disk_of(broker).names(broker.log_path())


@pytest.mark.parametrize("config", [{"retention.ms": "soon"}, {"retention.mss": "7"}])
def test_a_configuration_that_cannot_be_used_deletes_nothing(config: dict[str, str]) -> None:
    broker = broker_with({})
    broker.clock.advance(30 * DAY)
    with pytest.raises(ConfigError):
        told(broker, config)
    assert start_offset(broker) == 0
    told(broker, {})
    assert start_offset(broker) == 16


def test_a_log_without_its_topic_is_left_alone() -> None:
    broker = broker_with({})
    broker.directory.pause_deletion(TP, topic_id="f" * 32)
    assert not broker.log().deletion_paused, "that was another topic of the name"
    broker.directory.pause_deletion(TP, topic_id=TOPIC_ID)
    broker.clock.advance(30 * DAY)
    assert start_offset(broker) == 0
    told(broker, {})
    assert start_offset(broker) == 16


# -- a compaction under way ---------------------------------------------------------------------


def planned(broker: Broker) -> CompactionPlan:
    plan = broker.log().compaction.plan(broker.clock.now_us())
    assert plan is not None
    return plan


@pytest.mark.parametrize(
    "later",
    [
        {"cleanup.policy": "delete"},
        {**COMPACTED, "min.compaction.lag.ms": "1000"},
        {**COMPACTED, "delete.retention.ms": str(2 * DAY * 1000)},
        None,
    ],
    ids=["no longer compacted", "longer lag", "tombstones stay longer", "gone"],
)
def test_a_compaction_ends_when_less_may_be_removed(later: dict[str, str] | None) -> None:
    broker = broker_with(COMPACTED)
    plan = planned(broker)
    write_cleaned(broker, plan.groups[0])
    if later is None:
        broker.directory.pause_deletion(TP, topic_id=TOPIC_ID)
    else:
        told(broker, later)
    assert not broker.log().compaction.fits(plan.groups)
    assert not broker.log().compaction.swap(plan.groups[0])
    assert offsets_from(broker.log(), 0) == [*range(0, 16, 2)]
    assert not [n for n in disk_of(broker).names(broker.log_path()) if n.endswith(".cleaned")]


def test_a_compaction_goes_on_when_more_may_be_removed() -> None:
    broker = broker_with(COMPACTED)
    plan = planned(broker)
    write_cleaned(broker, plan.groups[0])
    told(broker, {**COMPACTED, "delete.retention.ms": "0"})
    assert broker.log().compaction.swap(plan.groups[0])


# -- the file -----------------------------------------------------------------------------------


def test_a_full_disk_keeps_no_configuration_from_being_applied(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = broker_with(FOREVER)
    disk = disk_of(broker)
    disk.refuse = lambda done, path: (
        errno.ENOSPC if done == "pwrite" and names.TOPIC_CONFIG in path.name else None
    )
    with caplog.at_level(logging.WARNING):
        told(broker, {"retention.ms": "60000"})
    assert "counts all the same" in caplog.text
    assert broker.log().config.retention_ms == 60_000
    broker.append(record_batch(1))
    kill(broker)
    broker.start(told=False)
    log = broker.directory.get(TP)
    assert log is not None
    assert log.config.retention_ms is None, "the one before"
    disk.refuse = lambda _done, _path: None
    told(broker, {"retention.ms": "60000"})
    close(broker)
    broker.start(told=False)
    log = broker.directory.get(TP)
    assert log is not None
    assert log.config.retention_ms == 60_000


def rot(data: bytes) -> bytes:
    return data.replace(b"-1", b"-2")


def unknown_key(_data: bytes) -> bytes:
    return checksummed_file("logbus-topic-config 1", ['retention.parsecs "12"'])


def no_json(_data: bytes) -> bytes:
    return checksummed_file("logbus-topic-config 1", ["retention.ms -1-1"])


@pytest.mark.parametrize("harm", [rot, unknown_key, no_json])
def test_a_file_that_cannot_be_used_costs_nothing(harm: Callable[[bytes], bytes]) -> None:
    broker = broker_with(FOREVER)
    broker.clock.advance(30 * DAY)
    close(broker)
    path = broker.log_path() / names.TOPIC_CONFIG
    disk_of(broker).overwrite(path, harm(bytes(disk_of(broker).data(path))))
    broker.start(told=False)
    assert start_offset(broker) == 0
    told(broker, FOREVER)
    assert start_offset(broker) == 0
    close(broker)
    broker.start(told=False)
    log = broker.directory.get(TP)
    assert log is not None
    assert log.kept_config == FOREVER


def test_a_file_that_cannot_be_read_costs_nothing() -> None:
    broker = broker_with(FOREVER)
    close(broker)
    disk_of(broker).refuse = lambda done, path: (
        errno.EIO if done == "open" and path.name == names.TOPIC_CONFIG else None
    )
    broker.start(told=False)
    assert start_offset(broker) == 0


def test_a_crash_while_a_configuration_is_kept() -> None:
    before, after = {"retention.ms": "100000"}, {"retention.ms": "200000", "segment.bytes": "2048"}
    for broker, _, flushed in every_crash(
        lambda: broker_with(before, count=1), lambda broker: told(broker, after)
    ):
        log = broker.directory.get(TP)
        assert log is not None
        assert log.kept_config in (before, after)
        assert log.ends().high_watermark == flushed


def test_the_file_takes_any_text_that_is_a_number(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")
    config = {"retention.ms": " 86400000\n", "cleanup.policy": "delete,\u2028compact"}
    told(broker, config)
    broker.directory.close()
    broker.start(told=False)
    log = broker.directory.get(TP)
    assert log is not None
    assert log.kept_config == config
    broker.directory.close()
