"""The power is cut at every operation of a log that follows: appends over leader epochs, offsets
that are passed over, another start, and a log that starts over."""

from __future__ import annotations

import pytest

from spark_logbus.errors import LogMissingError
from spark_logbus.log import LogConfig, WantedLog
from spark_logbus.log.disk import names
from spark_logbus.log.disk.checksummed_file import checksummed_file
from spark_logbus.model import LostOffsets
from spark_logbus.record import stamp
from tests.builders.record_batches import record_batch
from tests.fakes.clock import NOW_US
from tests.fakes.disk import SimulatedDisk
from tests.fakes.log_directory import TOPIC_ID, TP, Broker, batches_from
from tests.fault.log.test_crash_points import every_crash

CONFIG = LogConfig(segment_bytes=1024, retention_ms=1, flush_ms=60_000)
EPOCHS = (1, 1, 3, 3, 3, 4, 8, 8, 9, 9, 9, 12)
END = 2 * len(EPOCHS)


def wanted(base_offset: int = 0) -> WantedLog:
    return WantedLog(TP, TOPIC_ID, {}, follows=True, base_offset=base_offset)


def disk_of(broker: Broker) -> SimulatedDisk:
    assert isinstance(broker.files, SimulatedDisk)
    return broker.files


def follower() -> Broker:
    broker = Broker(files=SimulatedDisk(), config=CONFIG)
    broker.directory.ensure_all([wanted()])
    return broker


def following(end: int = END) -> Broker:
    """A follower that has the leader's records up to ``end``, and is checkpointed there."""
    broker = follower()
    follow(broker, end=end)
    broker.log().flush()
    broker.clock.advance(60)
    broker.directory.maintain()
    return broker


def start(broker: Broker) -> None:
    """Starts as a broker that follows still; a log that is refused or missing is left so."""
    broker.clock.advance(60)
    broker.start(told=False)
    if broker.directory.get(TP) is not None:
        broker.directory.ensure_all([wanted()])


def leaders(offset: int) -> memoryview:
    """The leader's record batch at ``offset``."""
    data = record_batch(2, payload=b"%03d" % (offset // 2) + bytes(300))
    stamp(data, base_offset=offset, leader_epoch=EPOCHS[offset // 2], append_time_us=NOW_US)
    return data


def follow(broker: Broker, *, end: int = END) -> None:
    log = broker.log()
    for offset in range(log.ends().log_end_offset, end, 2):
        log.append_as_follower(leaders(offset))
        if offset % 6 == 0:
            log.flush()


def check(broker: Broker) -> None:
    """Checks that the log has no gap and no damage, and that its epochs are those of its records,
    in memory and for the next start."""
    log = broker.log()
    ends = log.ends()
    assert log.damaged == ()
    assert log.log_id is not None
    offset = ends.log_start_offset
    for lost in (*ends.lost, LostOffsets(ends.log_end_offset, ends.log_end_offset)):
        for header, data in batches_from(log, offset, end=lost.start):
            assert header.base_offset == offset // 2 * 2
            if header.base_offset < END:
                assert data == leaders(header.base_offset)
            found = [each for each in log.epochs.entries if each.start_offset <= offset]
            assert found[-1].epoch == header.leader_epoch
            offset = header.next_offset
        assert offset == lost.start
        offset = lost.end
    assert all(each.start_offset < ends.log_end_offset for each in log.epochs.entries)
    path = broker.log_path() / names.LEADER_EPOCHS
    if log.epochs.entries:
        lines = [f"{epoch} {start}" for epoch, start in log.epochs.entries]
        assert disk_of(broker).durable_data(path) == checksummed_file(
            "logbus-leader-epochs 1", lines
        )


def goes_on(broker: Broker) -> None:
    follow(broker)
    broker.log().flush()
    check(broker)
    assert broker.log().ends().log_end_offset == END
    assert broker.log().append_as_leader(record_batch(2), leader_epoch=13).base_offset == END


@pytest.mark.long
def test_a_followers_appends() -> None:
    """Record batches may reach the disk out of order: what the leader still has is not taken for
    damaged, but copied again."""
    holes = 0
    for broker, _, flushed in every_crash(lambda: following(4), follow, start=start):
        assert broker.log().ends().log_end_offset >= flushed == 4
        if broker.log().damaged:
            assert broker.log().damaged[0].start >= flushed
            holes += 1
            broker.log().truncate_to(broker.log().damaged[0].start, below_watermark=True)
        check(broker)
        goes_on(broker)
    assert holes


def test_a_leaders_appends_in_a_new_epoch() -> None:
    def lead(broker: Broker) -> None:
        latest = broker.log().epochs.latest
        for more in (1, 1, 2):
            data = record_batch(2, payload=bytes(300))
            broker.log().append_as_leader(data, leader_epoch=latest + more)

    for broker, _, flushed in every_crash(lambda: following(END), lead, start=start):
        assert flushed == END
        check(broker)
        lead(broker)
        broker.log().flush()
        check(broker)


def test_offsets_that_are_passed_over() -> None:
    def pass_over(broker: Broker) -> None:
        broker.log().pass_over(100)
        data = record_batch(2)
        stamp(data, base_offset=100, leader_epoch=20, append_time_us=NOW_US)
        broker.log().append_as_follower(data)
        broker.log().flush()

    ends = set()
    for broker, _, flushed in every_crash(lambda: following(8), pass_over, start=start):
        assert flushed == 8
        check(broker)
        log = broker.log()
        ends.add(log.ends().log_end_offset)
        if log.ends().log_end_offset == 8:
            assert log.ends().lost == ()
            pass_over(broker)
            check(broker)
        assert log.ends().lost == (LostOffsets(8, 100),)
    assert ends == {8, 100, 102}


@pytest.mark.parametrize("to", [9, 12, 13, END])
def test_another_start(to: int) -> None:
    def take_start(broker: Broker) -> None:
        broker.log().start_from(to)
        broker.directory.maintain()

    starts = set()
    for broker, before, flushed in every_crash(following, take_start, start=start):
        assert (before, flushed) == (0, END)
        check(broker)
        ends = broker.log().ends()
        assert ends.log_end_offset == END
        starts.add(ends.log_start_offset)
        take_start(broker)
        check(broker)
        assert broker.log().ends().log_start_offset == to
        bases = [
            base
            for name in disk_of(broker).names(broker.log_path())
            if (base := names.parse_segment(name)) is not None
        ]
        assert bases == ([END] if to == END else list(range(to // 4 * 4, END, 4)))
    assert starts == {0, to}


@pytest.mark.parametrize("base_offset", [16, 4])
@pytest.mark.parametrize("keep_files", [True, False])
def test_a_log_that_starts_over(keep_files: bool, base_offset: int) -> None:
    """The new one may begin before the end of the old one, which is in the checkpoint."""

    def start_over(broker: Broker) -> None:
        broker.directory.start_over(wanted(base_offset), keep_files=keep_files)
        follow(broker, end=base_offset + 2)
        broker.log().flush()

    seen = set()
    for broker, _, _ in every_crash(lambda: following(8), start_over, start=start):
        log = broker.directory.get(TP)
        if log is None:
            # The old one is aside, and the new one not there: as long as the checkpoint knows of
            # it, none is made by itself.
            if broker.directory.known_end(TP, topic_id=TOPIC_ID):
                with pytest.raises(LogMissingError):
                    broker.log()
            seen.add("missing")
        else:
            check(broker)
            seen.add("old" if log.ends().log_start_offset == 0 else "new")
        if log is None or log.ends().log_start_offset == 0:
            start_over(broker)
        check(broker)
        assert broker.log().ends().log_start_offset == base_offset
        goes_on(broker)
        broker.restart()
        left = set(disk_of(broker).names(broker.path)) - {".lock", "checkpoint", "clock"}
        strays = {name for name in left if name.endswith(names.STRAY_SUFFIX)}
        assert left - strays == {"flights-0"}
        assert bool(strays) == keep_files
    assert seen == {"old", "missing", "new"}


def test_the_first_start_of_a_log_of_an_earlier_release() -> None:
    def old() -> Broker:
        broker = following()
        broker.directory.close()
        disk = disk_of(broker)
        disk.remove(broker.log_path() / names.LEADER_EPOCHS)
        disk.sync_directory(broker.log_path())
        disk.overwrite(
            broker.log_path() / names.PARTITION_METADATA,
            checksummed_file("logbus-partition 1", [TP.topic, str(TP.partition), TOPIC_ID]),
        )
        return broker

    told = set[str]()

    def first_start(broker: Broker) -> None:
        broker.start()
        assert broker.log().log_id is not None
        told.add(broker.log().log_id or "")

    for broker, _, _ in every_crash(old, first_start, start=start):
        check(broker)
        log_id = broker.log().log_id
        assert not told or told == {log_id}  # what was told once stays
        told.clear()
        goes_on(broker)
