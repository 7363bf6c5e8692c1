"""The power is cut at every operation of a roll, retention, creation, removal and close."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_logbus.errors import UnknownTopicError
from spark_logbus.log import LogConfig, PartitionLog, WantedLog
from spark_logbus.model import TopicPartition
from tests.builders.record_batches import record_batch
from tests.fakes.disk import (
    NOTHING,
    AllSurvives,
    DisorderedSurvival,
    PowerCutError,
    RandomSurvival,
    SimulatedDisk,
    Survival,
)
from tests.fakes.log_directory import TOPIC_ID, TP, Broker, batches_from, ensure_one, offsets_from

CONFIG = LogConfig(segment_bytes=1024, retention_bytes=2500, retention_ms=None, flush_ms=60_000)
Prepare = Callable[[], Broker]
Act = Callable[[Broker], None]

SURVIVALS: list[Callable[[], Survival]] = [
    lambda: NOTHING,
    AllSurvives,
    *(lambda seed=seed: RandomSurvival(seed) for seed in range(4)),
    *(lambda seed=seed: DisorderedSurvival(seed) for seed in range(4, 8)),
]


def new_broker() -> Broker:
    return Broker(files=SimulatedDisk(), config=CONFIG)


def broker_with(count: int) -> Broker:
    broker = new_broker()
    broker.append(*(record_batch(2, payload=b"%03d" % n + bytes(400)) for n in range(count)))
    return broker


def every_crash(
    prepare: Prepare, act: Act, *, start: Act = Broker.start
) -> Iterator[tuple[Broker, int, int]]:
    """``act`` on a prepared broker, cut short before each of its operations, then ``start``ed.

    Yields the restarted broker with the log start offset and high watermark before ``act``.
    """
    for survival in SURVIVALS:
        at = 0
        while True:
            broker = prepare()
            disk = broker.files
            assert isinstance(disk, SimulatedDisk)
            log = broker.directory.get(TP)
            log_start, flushed = (
                (log.ends().log_start_offset, log.ends().high_watermark) if log else (0, 0)
            )
            disk.cut_power_at = len(disk.operations) + at
            try:
                act(broker)
                done = True
            except PowerCutError:
                done = False
            disk.crash(survival())
            start(broker)
            yield broker, log_start, flushed
            if done:
                assert at > 0, "nothing happened that could have been cut short"
                break
            at += 1


def check_whole(broker: Broker, *, flushed: int) -> None:
    """Checks that the log has no gap, no double offset and no damage from its start to its end."""
    log = broker.log()
    ends = log.ends()
    assert log.damaged == ()
    assert ends.log_start_offset <= flushed <= ends.high_watermark
    offset = ends.log_start_offset
    for header, data in batches_from(log, offset):
        assert header.base_offset == offset
        assert data[80:83] == b"%03d" % (offset // 2)
        offset = header.next_offset
    assert offset == ends.high_watermark == ends.log_end_offset


def append_more(broker: Broker) -> None:
    for n in range(3, 8):
        broker.append(record_batch(2, payload=b"%03d" % n + bytes(400)), flush=n % 2 == 0)


def test_a_roll() -> None:
    for broker, _, flushed in every_crash(lambda: broker_with(3), append_more):
        check_whole(broker, flushed=flushed)
        end = broker.log().ends().log_end_offset
        assert broker.append(record_batch(2, payload=b"%03d" % (end // 2))) == end + 2


def test_retention() -> None:
    for broker, _, flushed in every_crash(
        lambda: broker_with(12), lambda broker: broker.directory.maintain()
    ):
        check_whole(broker, flushed=flushed)
        assert broker.log().ends().log_start_offset in (0, 12)  # the old or the new set
        broker.directory.maintain()
        assert broker.log().ends().log_start_offset == 12
        check_whole(broker, flushed=flushed)


def test_retention_on_a_disk_too_full_for_its_checkpoint() -> None:
    def maintain(broker: Broker) -> None:
        disk = broker.files
        assert isinstance(disk, SimulatedDisk)
        disk.refuse = lambda done, path: (
            errno.ENOSPC if done == "pwrite" and "checkpoint" in path.name else None
        )
        broker.directory.maintain()
        assert broker.log().ends().log_start_offset == 12

    starts = set()
    for broker, _, flushed in every_crash(lambda: broker_with(12), maintain):
        check_whole(broker, flushed=flushed)
        starts.add(broker.log().ends().log_start_offset)
    assert starts == {0, 4, 8, 12}


def test_expiry_of_all_that_is_there() -> None:
    def prepare() -> Broker:
        broker = broker_with(5)
        broker.log().configure(LogConfig(segment_bytes=1024, retention_ms=1000))
        broker.clock.advance(3600)
        return broker

    for broker, _, flushed in every_crash(prepare, lambda broker: broker.directory.maintain()):
        check_whole(broker, flushed=flushed)
        assert broker.log().ends().log_end_offset == flushed == 10
        assert broker.append(record_batch(2, payload=b"005")) == 12


def test_close_and_the_next_start() -> None:
    def close(broker: Broker) -> None:
        append_more(broker)
        broker.directory.close()
        broker.start()

    for broker, _, flushed in every_crash(lambda: broker_with(3), close):
        check_whole(broker, flushed=flushed)


def test_creation_of_a_partition() -> None:
    def create(broker: Broker) -> None:
        broker.append(record_batch(2, payload=b"000"))

    for broker, _, _ in every_crash(new_broker, create):
        check_whole(broker, flushed=0)
        assert [log.topic_partition for log in broker.directory.logs()] == [TP]


def test_creation_of_several_partitions_at_once() -> None:
    wanted = [
        WantedLog(TopicPartition("many", number), TOPIC_ID, {"retention.ms": "5"})
        for number in range(3)
    ]

    def create(broker: Broker) -> None:
        made = broker.directory.ensure_all(wanted)
        assert {type(log) for log in made.values()} == {PartitionLog}

    for broker, _, _ in every_crash(lambda: broker_with(1), create):
        check_whole(broker, flushed=0)
        create(broker)
        for each in wanted:
            log = broker.log(each.topic_partition)
            log.append_as_leader(record_batch(2), leader_epoch=1)
            log.flush()
        disk = broker.files
        assert isinstance(disk, SimulatedDisk)
        disk.crash(NOTHING)
        broker.start()
        for each in wanted:
            log = broker.log(each.topic_partition)
            assert offsets_from(log, 0) == [0]
            assert log.config.retention_ms == 5


def test_removal_of_a_partition() -> None:
    for broker, _, flushed in every_crash(
        lambda: broker_with(5), lambda broker: broker.remove(TP, topic_id=TOPIC_ID)
    ):
        log = broker.directory.get(TP)
        if log is not None:
            check_whole(broker, flushed=flushed)
        broker.remove(TP, topic_id=TOPIC_ID)
        assert broker.log().ends().log_end_offset == 0
        disk = broker.files
        assert isinstance(disk, SimulatedDisk)
        assert sorted(disk.names(broker.path)) == [".lock", "checkpoint", "clock", "flights-0"]


def test_removal_of_partitions_together() -> None:
    several = {TopicPartition("several", number): TOPIC_ID for number in range(3)}

    def broker_with_several() -> Broker:
        broker = broker_with(0)
        for each in several:
            broker.log(each).append_as_leader(record_batch(2), leader_epoch=1)
            broker.log(each).flush()
        return broker

    def remove(broker: Broker) -> None:
        assert broker.directory.remove(several) == {}

    for broker, _, _ in every_crash(broker_with_several, remove):
        for each in several:
            log = broker.directory.get(each)
            assert log is None or offsets_from(log, 0) == [0]
        remove(broker)
        disk = broker.files
        assert isinstance(disk, SimulatedDisk)
        assert not [name for name in disk.names(broker.path) if name.startswith("several")]


def test_partitions_that_are_removed_together_take_one_sync() -> None:
    broker = broker_with(0)
    several = {TopicPartition("several", number): TOPIC_ID for number in range(5)}
    for each in several:
        broker.log(each)
    disk, operations = broker.files, list[str]()
    assert isinstance(disk, SimulatedDisk)
    disk.refuse = lambda operation, path: operations.append(operation)
    assert broker.directory.remove(several) == {}
    assert operations.count("sync_directory") == 1
    assert operations.count("rename") == 5


def test_a_partition_that_cannot_be_removed_keeps_no_other() -> None:
    broker = broker_with(0)
    first, second = (TopicPartition("several", number) for number in range(2))
    for each in (first, second):
        broker.log(each)
    disk = broker.files
    assert isinstance(disk, SimulatedDisk)

    disk.refuse = lambda operation, path: (
        errno.EIO if operation == "rename" and "several-0" in path.name else None
    )
    errors = broker.directory.remove({first: TOPIC_ID, second: TOPIC_ID})
    assert list(errors) == [first]
    assert broker.directory.get(second) is None


def test_a_log_of_another_topic_is_set_aside_whole_or_stays() -> None:
    def recreate(broker: Broker) -> None:
        ensure_one(broker.directory, TP, topic_id="f" * 32, config={})

    for broker, _, _ in every_crash(lambda: broker_with(3), recreate):
        recreate(broker)
        disk = broker.files
        assert isinstance(disk, SimulatedDisk)
        strays = [name for name in disk.names(broker.path) if name.endswith(".stray")]
        assert strays == [f"{TOPIC_ID}-0.stray"]
        data = disk.data(broker.path / strays[0] / f"{0:020d}.log")
        assert len(data) == 2 * 488


def test_appends_to_a_removed_log_say_so() -> None:
    broker = broker_with(2)
    log = broker.log()
    broker.remove(TP, topic_id=TOPIC_ID)
    with pytest.raises(UnknownTopicError):
        log.append_as_leader(record_batch(1), leader_epoch=1)


def test_a_topic_made_anew_while_retention_deletes_loses_nothing() -> None:
    """Retention comes to the files of a log that was deleted meanwhile; at its paths there are
    those of another topic of that name by now."""
    broker = broker_with(0)
    name, other = TopicPartition("name", 0), "f" * 32
    for log in (broker.log(), broker.log(name)):
        for _ in range(8):
            log.append_as_leader(record_batch(1, payload=bytes(400)), leader_epoch=1)
        log.flush()
    disk = broker.files
    assert isinstance(disk, SimulatedDisk)

    def make_anew(operation: str, path: Path) -> None:
        if operation == "remove" and path.parent == broker.log_path():
            disk.refuse = lambda *_: None
            broker.remove(name, topic_id=TOPIC_ID)
            ensure_one(broker.directory, name, topic_id=other, config={}).append_as_leader(
                record_batch(3), leader_epoch=1
            )

    disk.refuse = make_anew
    broker.directory.maintain()
    assert broker.log(name).topic_id == other
    broker.restart()
    assert offsets_from(broker.log(name), 0) == [0]
    assert broker.log().ends().log_start_offset == 2
