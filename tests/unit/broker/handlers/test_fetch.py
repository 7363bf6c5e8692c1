from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from spark_logbus.broker.handlers.fetch import LEAST_PASSED_BYTES, FetchHandler
from spark_logbus.broker.handlers.long_poll import DelayedFetches
from spark_logbus.broker.handlers.request_metrics import RequestMetrics
from spark_logbus.broker.metadata_cache import MetadataCache
from spark_logbus.broker.replica.follower_reads import FollowerReads
from spark_logbus.broker.replica.states import Replicas
from spark_logbus.errors import InvalidRequestError, NotLeaderError, OffsetOutOfRangeError
from spark_logbus.log import LogConfig, LogEnds, LogSlice, PartitionLog
from spark_logbus.model import TopicPartition
from spark_logbus.network import Answer, DelayedResponse, Response
from spark_logbus.protocol import (
    Api,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
    decode_response,
)
from spark_logbus.record import parse_header
from tests.fakes.broker_parts import T0, T1, Logs, logs_in, message_of, record_batch, reply
from tests.fakes.handlers import context
from tests.fakes.log_directory import SlowFollower

BATCH = len(record_batch())


class Fetching:
    """A fetch handler over logs; what moves is passed on as the broker does."""

    def __init__(
        self, logs: Logs, *, max_fetch_bytes: int = 1 << 20, metrics: RequestMetrics | None = None
    ) -> None:
        self.logs = logs
        self.waiting = DelayedFetches()
        self.handler = FetchHandler(
            logs.here.as_replica_manager(),
            self.waiting,
            clock=logs.clock,
            max_wait_ms=60_000,
            max_fetch_bytes=max_fetch_bytes,
            metrics=metrics or RequestMetrics(logs.clock),
            followed=FollowerReads(
                5,
                logs=logs.directory,
                replicas=Replicas(),
                metadata_cache=cast(MetadataCache, None),  # nothing is followed here
                is_current=lambda: True,
                changed=self.waiting.wake,
            ),
            in_sync=logs.in_sync,
        )
        for topic_partition in (T0, T1):
            log = logs.lead(topic_partition)
            log.add_listener(partial(self.waiting.wake, topic_partition))

    def append(
        self, topic_partition: TopicPartition = T0, *, count: int = 1, flush: bool = True
    ) -> None:
        for _ in range(count):
            self.logs.here.leader_of(topic_partition).log.append_as_leader(
                record_batch(), leader_epoch=0
            )
        if flush:
            self.logs.flush()

    def fetch(
        self,
        *wanted: FetchPartition,
        wait_ms: int = 1_000,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
    ) -> Answer:
        return self.handler.handle(
            FetchRequest(wait_ms, min_bytes, max_bytes, list(wanted)), context()
        )


def part(
    topic_partition: TopicPartition = T0,
    offset: int = 0,
    *,
    max_bytes: int = 1 << 20,
    end: int | None = None,
) -> FetchPartition:
    return FetchPartition(topic_partition.topic, topic_partition.partition, offset, max_bytes, end)


def results(answer: Answer) -> list[FetchResult]:
    message = message_of(Api.FETCH, answer)
    assert isinstance(message, FetchResponse)
    assert [piece.length for piece in reply(answer).slices] == [
        result.length for result in message.results if result.length
    ]
    return message.results


def waits(answer: Answer) -> DelayedResponse:
    assert isinstance(answer, DelayedResponse)
    assert answer.poll() is None
    return answer


@pytest.fixture
def fetching(tmp_path: Path) -> Iterator[Fetching]:
    with logs_in(tmp_path / "data") as logs:
        yield Fetching(logs)


def test_what_is_there_comes_at_once(fetching: Fetching) -> None:
    fetching.append(count=3)
    (result,) = results(fetching.fetch(part()))
    assert (result.length, result.log_start_offset, result.high_watermark) == (3 * BATCH, 0, 3)
    (result,) = results(fetching.fetch(part(offset=1, end=2)))
    assert result.length == BATCH


def test_a_topic_of_another_id_is_not_served(
    fetching: Fetching,
) -> None:
    fetching.append(count=3)
    own = fetching.logs.here.leader_of(T0).log.topic_id
    (result,) = results(fetching.fetch(FetchPartition(T0.topic, 0, 0, 1 << 20, None, own)))
    assert result.length == 3 * BATCH
    (result,) = results(fetching.fetch(FetchPartition(T0.topic, 0, 0, 1 << 20, None, "other")))
    assert result.error is not None
    assert "that is meant has the id other" in result.error.message


def test_without_waiting_an_empty_answer_comes_at_once(fetching: Fetching) -> None:
    for wait_ms in (0, -1):
        (result,) = results(fetching.fetch(part(), wait_ms=wait_ms))
        assert (result.length, result.high_watermark, result.error) == (0, 0, None)


def test_a_flush_wakes_who_waits_and_an_append_does_not(fetching: Fetching) -> None:
    answer = waits(fetching.fetch(part()))
    woken: list[bool] = []
    answer.subscribe(lambda: woken.append(True))
    fetching.append(flush=False)
    assert not woken
    assert answer.poll() is None, "unflushed records are not visible"
    fetching.logs.flush()
    assert woken
    assert results(answer)[0].length == BATCH


def test_the_high_watermark_wakes_who_waits_and_a_flush_before_it_does_not(tmp_path: Path) -> None:
    rule = SlowFollower()
    rule.end = 1
    with logs_in(tmp_path / "data", watermark=rule) as logs:
        fetching = Fetching(logs)
        fetching.append(count=2)
        answer = waits(fetching.fetch(part(offset=1)))
        woken: list[bool] = []
        answer.subscribe(lambda: woken.append(True))
        fetching.append(count=2)
        assert not woken
        rule.end = 3
        logs.here.leader_of(T0).log.advance_high_watermark()
        assert woken
        (result,) = results(answer)
        assert (result.length, result.high_watermark) == (2 * BATCH, 3)


def test_records_that_come_between_two_looks_are_not_missed(fetching: Fetching) -> None:
    answer = fetching.fetch(part())
    fetching.append()
    assert results(answer)[0].length == BATCH


def test_the_deadline_ends_the_wait(fetching: Fetching) -> None:
    answer = waits(fetching.fetch(part(), wait_ms=500))
    assert answer.deadline == fetching.logs.clock.seconds + 0.5
    fetching.logs.clock.advance(0.5)
    assert results(answer)[0].length == 0


def test_no_wait_is_longer_than_the_broker_allows(fetching: Fetching) -> None:
    answer = waits(fetching.fetch(part(), wait_ms=10**15))
    assert answer.deadline == fetching.logs.clock.seconds + 60


def test_min_bytes_are_waited_for(fetching: Fetching) -> None:
    answer = waits(fetching.fetch(part(), min_bytes=2 * BATCH))
    fetching.append()
    assert answer.poll() is None
    fetching.append()
    assert results(answer)[0].length == 2 * BATCH


def test_min_bytes_count_over_all_partitions(fetching: Fetching) -> None:
    answer = waits(fetching.fetch(part(), part(T1), min_bytes=2 * BATCH))
    fetching.append(T0)
    assert answer.poll() is None
    fetching.append(T1)
    assert [result.length for result in results(answer)] == [BATCH, BATCH]


def test_min_bytes_come_short_at_the_deadline(fetching: Fetching) -> None:
    answer = waits(fetching.fetch(part(), min_bytes=5 * BATCH))
    fetching.append()
    fetching.logs.clock.advance(1)
    assert results(answer)[0].length == BATCH


def test_min_bytes_that_max_bytes_exclude_are_not_waited_for(fetching: Fetching) -> None:
    fetching.append(count=4)
    answer = fetching.fetch(part(max_bytes=BATCH), min_bytes=3 * BATCH)
    assert results(answer)[0].length == BATCH
    answer = fetching.fetch(part(), min_bytes=10**12, max_bytes=2 * BATCH)
    assert results(answer)[0].length == 2 * BATCH


def test_a_batch_that_max_bytes_cuts_off_is_not_waited_for(fetching: Fetching) -> None:
    fetching.append(count=2)
    most = 2 * BATCH - 1
    assert results(fetching.fetch(part(max_bytes=most), min_bytes=most))[0].length == BATCH


def test_a_fetch_reads_each_log_once(fetching: Fetching, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[TopicPartition] = []
    read = PartitionLog.read

    def counted(log: PartitionLog, offset: int, **limits: Any) -> LogSlice | None:
        reads.append(log.topic_partition)
        return read(log, offset, **limits)

    fetching.append(count=4)
    monkeypatch.setattr(PartitionLog, "read", counted)
    results(fetching.fetch(part(max_bytes=BATCH), part(T1), min_bytes=3 * BATCH))
    ask_for_file(fetching, part())
    assert reads == [T0, T1, T0]


@pytest.mark.parametrize("max_bytes", [-1, 0, 1])
def test_the_first_record_batch_comes_whole(fetching: Fetching, max_bytes: int) -> None:
    fetching.append(count=2)
    for answer in (
        fetching.fetch(part(max_bytes=max_bytes)),
        fetching.fetch(part(), max_bytes=max_bytes),
    ):
        assert results(answer)[0].length == BATCH


@pytest.mark.parametrize("max_bytes", [-1, 0])
def test_silly_limits_do_not_make_an_empty_fetch_return_at_once(
    fetching: Fetching, max_bytes: int
) -> None:
    waits(fetching.fetch(part(max_bytes=max_bytes), max_bytes=max_bytes, min_bytes=-1))


def test_what_does_not_fit_behind_the_others_waits_its_turn(fetching: Fetching) -> None:
    fetching.append(T0)
    fetching.append(T1, count=2)
    first, second = results(fetching.fetch(part(), part(T1), max_bytes=2 * BATCH))
    assert (first.length, second.length) == (BATCH, BATCH)
    first, second = results(fetching.fetch(part(), part(T1), max_bytes=BATCH + 8))
    assert (first.length, second.length) == (BATCH, 0)
    assert second.high_watermark == 2
    first, second = results(fetching.fetch(part(offset=1), part(T1), max_bytes=8))
    assert (first.length, second.length) == (0, BATCH)


def test_the_broker_bounds_the_whole_fetch(tmp_path: Path) -> None:
    with logs_in(tmp_path / "data") as logs:
        fetching = Fetching(logs, max_fetch_bytes=2 * BATCH)
        fetching.append(count=5)
        assert results(fetching.fetch(part()))[0].length == 2 * BATCH


def test_an_error_of_one_partition_ends_the_wait_of_all(fetching: Fetching) -> None:
    gone, fine = results(fetching.fetch(part(TopicPartition("gone", 0)), part()))
    assert gone.error is not None
    assert isinstance(gone.error.to_exception(), NotLeaderError)
    assert fine.error is None
    for offset in (-1, 1):
        (out,) = results(fetching.fetch(part(offset=offset)))
        assert out.error is not None
        assert isinstance(out.error.to_exception(), OffsetOutOfRangeError)


def test_a_fetch_of_nothing(fetching: Fetching) -> None:
    with pytest.raises(InvalidRequestError):
        fetching.fetch()


def test_a_topic_that_goes_away_ends_the_wait(fetching: Fetching) -> None:
    answer = waits(fetching.fetch(part()))
    woken: list[bool] = []
    answer.subscribe(lambda: woken.append(True))
    del fetching.logs.here.led[T0]
    fetching.waiting.wake(T0)
    assert woken
    (result,) = results(answer)
    assert result.error is not None
    assert isinstance(result.error.to_exception(), NotLeaderError)


def test_when_the_broker_stops_nobody_waits(fetching: Fetching) -> None:
    answer = waits(fetching.fetch(part(), part(T1)))
    woken: list[bool] = []
    answer.subscribe(lambda: woken.append(True))
    fetching.handler.end_waiting()
    assert woken == [True]
    assert [result.length for result in results(answer)] == [0, 0]
    assert len(results(fetching.fetch(part()))) == 1, "not for one that comes later either"


def test_who_waits_is_forgotten(fetching: Fetching) -> None:
    answer = waits(fetching.fetch(part(), part(T1)))
    assert len(fetching.waiting) == 2
    fetching.append()
    assert results(answer)
    assert len(fetching.waiting) == 0, "answered"
    answer = waits(fetching.fetch(part(offset=1)))
    del answer
    fetching.append()
    assert len(fetching.waiting) == 0, "its connection is gone"


def test_a_slice_outlives_its_segment(tmp_path: Path) -> None:
    with logs_in(tmp_path / "data", LogConfig(segment_bytes=1024, retention_bytes=0)) as logs:
        fetching = Fetching(logs)
        for _ in range(20):
            fetching.append()
        answer = reply(fetching.fetch(part()))
        logs.directory.maintain()
        assert logs.here.leader_of(T0).log.ends().log_start_offset > 0
        assert parse_header(answer.slices[0].read()).base_offset == 0


# -- files in place of bytes ------------------------------------------------------------------


def large(fetching: Fetching, *, count: int) -> None:
    """Record batches of a little more than 256 KiB."""
    for _ in range(count):
        fetching.logs.here.leader_of(T0).log.append_as_leader(
            record_batch(payload=LARGE), leader_epoch=0
        )
    fetching.logs.flush()


LARGE = b"v" * (256 << 10)
LARGE_BATCH = len(record_batch(payload=LARGE))


def ask_for_file(
    fetching: Fetching, *wanted: FetchPartition, most: int = 64 << 20, max_bytes: int = 1 << 20
) -> Response:
    request = FetchRequest(1_000, 1, max_bytes, list(wanted), max_bytes_by_descriptor=most)
    return reply(fetching.handler.handle(request, context()))


def position_and_length(answer: Response) -> tuple[int, int] | None:
    if answer.file is None:
        return None
    message = decode_response(Api.FETCH, answer.file.header)
    assert isinstance(message, FetchResponse)
    (result,) = message.results
    assert (message.position, result.length) == (
        answer.file.slice.position,
        answer.file.slice.length,
    )
    whole = decode_response(Api.FETCH, answer.header)
    assert isinstance(whole, FetchResponse)
    assert whole.results[0].high_watermark == result.high_watermark
    return message.position, result.length


@pytest.fixture
def generous(tmp_path: Path) -> Iterator[Fetching]:
    """Lets out 2 MiB and a little at a time."""
    with logs_in(tmp_path / "data") as logs:
        yield Fetching(logs, max_fetch_bytes=8 * LARGE_BATCH)


def test_a_file_is_offered_beside_the_bytes_to_who_asks(generous: Fetching) -> None:
    large(generous, count=20)
    answer = ask_for_file(generous, part(offset=2))
    assert position_and_length(answer) == (2 * LARGE_BATCH, 8 * LARGE_BATCH)
    assert [piece.length for piece in answer.slices] == [3 * LARGE_BATCH]
    most = 5 * LARGE_BATCH
    assert position_and_length(ask_for_file(generous, part(), most=most)) == (0, most)
    end = ask_for_file(generous, part(offset=14, end=19))
    assert position_and_length(end) == (14 * LARGE_BATCH, 5 * LARGE_BATCH)
    assert reply(generous.fetch(part())).file is None


def test_a_file_is_not_offered_where_it_costs_more_than_it_saves(generous: Fetching) -> None:
    large(generous, count=20)
    assert ask_for_file(generous, part(end=3)).file is None
    assert ask_for_file(generous, part(), most=LEAST_PASSED_BYTES - 1).file is None
    assert position_and_length(ask_for_file(generous, part(end=4))) == (0, 4 * LARGE_BATCH)


def test_a_file_is_offered_for_one_partition_only(generous: Fetching) -> None:
    large(generous, count=20)
    assert ask_for_file(generous, part(), part(T1)).file is None
    assert ask_for_file(generous, part(T1), part()).file is None
    assert ask_for_file(generous, part(T1, offset=7)).file is None
    assert ask_for_file(generous, part(offset=21)).file is None


def test_at_the_end_of_a_log_there_is_no_file(generous: Fetching) -> None:
    large(generous, count=4)
    request = FetchRequest(0, 1, 1 << 20, [part(offset=4)], max_bytes_by_descriptor=64 << 20)
    answer = reply(generous.handler.handle(request, context()))
    assert answer.file is None
    assert not answer.slices


def test_a_segment_retired_between_two_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = PartitionLog.ends
    with logs_in(tmp_path / "data", LogConfig(segment_bytes=1 << 21, retention_bytes=1)) as logs:
        fetching = Fetching(logs, max_fetch_bytes=8 * LARGE_BATCH)
        large(fetching, count=20)

        def retire_then(log: PartitionLog) -> LogEnds:
            monkeypatch.undo()
            last = ends(log)
            logs.directory.maintain()
            return last

        monkeypatch.setattr(PartitionLog, "ends", retire_then)
        answer = ask_for_file(fetching, part())
        assert logs.here.leader_of(T0).log.ends().log_start_offset > 0
        assert answer.file is None
        assert [piece.length for piece in answer.slices] == [3 * LARGE_BATCH]


def test_what_a_file_holds_counts_as_sent(tmp_path: Path) -> None:
    with logs_in(tmp_path / "data") as logs:
        metrics = RequestMetrics(logs.clock)
        fetching = Fetching(logs, max_fetch_bytes=8 * LARGE_BATCH, metrics=metrics)
        large(fetching, count=20)
        ask_for_file(fetching, part())
        assert metrics.bytes_out(["t"]) == {"t": 8 * LARGE_BATCH}
        ask_for_file(fetching, part(), most=0)
        assert metrics.bytes_out(["t"]) == {"t": 11 * LARGE_BATCH}


def test_a_file_holds_nothing_above_the_high_watermark(generous: Fetching) -> None:
    large(generous, count=5)
    log = generous.logs.here.leader_of(T0).log
    log.append_as_leader(record_batch(payload=LARGE), leader_epoch=0)
    assert position_and_length(ask_for_file(generous, part())) == (0, 5 * LARGE_BATCH)


def test_a_file_of_another_topic_is_never_offered(generous: Fetching) -> None:
    large(generous, count=20)
    own = generous.logs.here.leader_of(T0).log.topic_id
    wanted = FetchPartition(T0.topic, 0, 0, 1 << 20, None, own)
    assert ask_for_file(generous, wanted).file is not None
    wanted.topic_id = "other"
    assert ask_for_file(generous, wanted).file is None
