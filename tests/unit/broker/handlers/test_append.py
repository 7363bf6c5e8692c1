from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_logbus.broker.handlers.append import AppendHandler
from spark_logbus.broker.handlers.request_metrics import RequestMetrics
from spark_logbus.broker.replica.holds import Holds
from spark_logbus.broker.schema_ids import KnownSchemaIds, SchemaUse
from spark_logbus.broker.security.owners import WriteOwners
from spark_logbus.coordination.cluster.lease import Lease
from spark_logbus.errors import (
    BrokerUnavailableError,
    CorruptRecordBatchError,
    InvalidRequestError,
    LogbusError,
    NotLeaderError,
    PartitionOfflineError,
    RequestTimeoutError,
    SchemaMismatchError,
    UnknownSchemaIdError,
)
from spark_logbus.log import OS_FILES, LogConfig
from spark_logbus.model import TopicPartition
from spark_logbus.network import Answer, DelayedResponse, NoResponse, NotYet
from spark_logbus.protocol import Api, AppendPartition, AppendRequest, AppendResponse, AppendResult
from spark_logbus.record import parse_header
from spark_logbus.record.rows.arrow import encode
from spark_logbus.topic_schemas import PLAIN, Encoding, TopicSchemas
from tests.builders.arrow_batches import arrow_batch
from tests.builders.record_batches import joined
from tests.fakes.broker_parts import (
    EPOCH,
    T0,
    T1,
    Logs,
    held_lease,
    logs_in,
    message_of,
    record_batch,
)
from tests.fakes.handlers import context, schema_ids


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Logs]:
    with logs_in(tmp_path / "data") as logs:
        logs.lead(T0)
        logs.lead(T1)
        yield logs


def append(
    logs: Logs,
    *parts: tuple[TopicPartition, memoryview],
    acks: str = "flushed",
    timeout_ms: int = 5_000,
    lengths: list[int] | None = None,
    lease: Lease | None = None,
    ids: KnownSchemaIds | None = None,
    holds: Holds | None = None,
) -> Answer:
    handler = AppendHandler(
        logs.here.as_replica_manager(),
        schema_ids=ids or schema_ids({}, logs.clock),
        lease=lease or held_lease(),
        holds=holds or Holds(),
        in_sync=logs.in_sync,
        clock=logs.clock,
        max_wait_ms=10_000,
        owners=WriteOwners(),
        metrics=RequestMetrics(logs.clock),
    )
    payload = memoryview(bytearray(b"".join(data for _, data in parts)))
    lengths = lengths or [len(data) for _, data in parts]
    partitions = [
        AppendPartition(topic_partition.topic, topic_partition.partition, length)
        for (topic_partition, _), length in zip(parts, lengths, strict=True)
    ]
    return handler.append(AppendRequest(acks, timeout_ms, partitions), context(payload))


def results(answer: Answer) -> list[AppendResult]:
    message = message_of(Api.APPEND, answer)
    assert isinstance(message, AppendResponse)
    return message.results


def failure(result: AppendResult) -> LogbusError:
    assert result.error is not None
    return result.error.to_exception()


def test_written_is_answered_before_the_flush(logs: Logs) -> None:
    first, second = (
        results(append(logs, (T0, record_batch(count)), acks="written")) for count in (3, 2)
    )
    assert (first[0].base_offset, second[0].base_offset) == (0, 3)
    assert first[0].append_time_us == logs.clock.wall_us
    assert logs.here.leader_of(T0).log.ends().high_watermark == 0


def test_flushed_is_answered_after_the_flush(logs: Logs) -> None:
    answer = append(logs, (T0, record_batch(3)))
    assert isinstance(answer, DelayedResponse)
    woken: list[bool] = []
    answer.subscribe(lambda: woken.append(True))
    assert answer.poll() is None
    logs.flush()
    assert woken
    assert results(answer)[0].base_offset == 0


def test_a_flush_between_append_and_subscription_is_not_missed(logs: Logs) -> None:
    answer = append(logs, (T0, record_batch()))
    logs.flush()
    assert isinstance(answer, DelayedResponse)
    answer.subscribe(lambda: None)
    assert results(answer)[0].error is None


def test_one_request_waits_for_all_its_partitions(logs: Logs) -> None:
    answer = append(logs, (T0, record_batch()), (T1, record_batch(5)))
    assert isinstance(answer, DelayedResponse)
    one, *others = logs.flusher.requested
    one.flush()
    assert answer.poll() is None
    for other in others:
        other.flush()
    assert [(each.topic, each.partition, each.base_offset) for each in results(answer)] == [
        ("t", 0, 0),
        ("t", 1, 0),
    ]


def test_no_acks_no_answer(logs: Logs) -> None:
    assert append(logs, (T0, record_batch()), acks="none") is NoResponse.NOT_WANTED
    assert logs.here.leader_of(T0).log.ends().log_end_offset == 1


def test_a_failure_without_acks_ends_the_connection(logs: Logs) -> None:
    gone = TopicPartition("gone", 0)
    answer = append(logs, (gone, record_batch()), (T0, record_batch()), acks="none")
    assert answer is NoResponse.CLOSE_CONNECTION
    assert logs.here.leader_of(T0).log.ends().log_end_offset == 1, "the others are appended"


def test_the_leader_stamps(logs: Logs) -> None:
    append(logs, (T0, record_batch(2)), acks="written")
    append(logs, (T0, record_batch(2)), acks="written")
    logs.flush()
    found = logs.here.leader_of(T0).log.read(2, max_bytes=1)
    assert found is not None
    header = parse_header(found.read())
    assert (header.base_offset, header.leader_epoch) == (2, EPOCH)


def test_each_partition_has_its_own_error(logs: Logs) -> None:
    torn = record_batch()[:-8]
    gone = TopicPartition("t", 9)
    answer = append(logs, (T0, torn), (gone, record_batch()), (T1, record_batch()), acks="written")
    corrupt, unled, good = results(answer)
    assert isinstance(failure(corrupt), CorruptRecordBatchError)
    assert isinstance(failure(unled), NotLeaderError)
    assert good.error is None


@pytest.mark.parametrize("acks", ["", "all", "FLUSHED"])
def test_unknown_acks(logs: Logs, acks: str) -> None:
    with pytest.raises(InvalidRequestError, match="none, written, flushed"):
        append(logs, (T0, record_batch()), acks=acks)


@pytest.mark.parametrize("lengths", [[1], [10_000], [0]])
def test_lengths_that_are_not_those_of_the_payload(logs: Logs, lengths: list[int]) -> None:
    with pytest.raises(InvalidRequestError, match="announces"):
        append(logs, (T0, record_batch()), lengths=lengths)


def test_negative_lengths_are_not_taken_as_positions(logs: Logs) -> None:
    data = record_batch()
    with pytest.raises(InvalidRequestError, match="less than 0"):
        append(logs, (T0, data), (T1, data), lengths=[-len(data), 3 * len(data)])
    assert logs.here.leader_of(T0).log.ends().log_end_offset == 0


@pytest.mark.parametrize(("timeout_ms", "seconds"), [(5_000, 5), (10**12, 10), (0, 0), (-5, 0)])
def test_a_flush_that_takes_too_long(logs: Logs, timeout_ms: int, seconds: int) -> None:
    answer = append(logs, (T0, record_batch()), timeout_ms=timeout_ms)
    if seconds:
        assert isinstance(answer, DelayedResponse)
        assert answer.poll() is None
        logs.clock.advance(seconds)
    error = failure(results(answer)[0])
    assert isinstance(error, RequestTimeoutError)
    logs.flush()  # nobody is hurt by an answer that comes after


def test_a_flush_that_fails_is_not_acknowledged(
    logs: Logs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answer = append(logs, (T0, record_batch()))
    file = type(OS_FILES.open_read_only(Path("/dev/null")))

    def fails(_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(file, "sync", fails)
    logs.flush()
    assert isinstance(failure(results(answer)[0]), PartitionOfflineError)


def test_an_append_of_nothing(logs: Logs) -> None:
    assert results(append(logs)) == []
    assert append(logs, acks="none") is NoResponse.NOT_WANTED


# -- the lease of the broker's id ---------------------------------------------------------------


class Leased:
    """A lease that ends, and goes on, when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lease = Lease(timeout_ms=10_000, ask=lambda _: True, elapsed_s=lambda: self.now)
        self.lease._look()

    def sleep(self) -> None:
        self.now += 60

    def hear(self) -> None:
        self.lease._look()


@pytest.mark.parametrize("acks", ["flushed", "written", "none"])
def test_an_append_after_the_lease_is_not_begun(logs: Logs, acks: str) -> None:
    leased = Leased()
    leased.sleep()
    answer = append(logs, (T0, record_batch()), acks=acks, lease=leased.lease)
    assert isinstance(answer, NotYet)
    assert logs.here.leader_of(T0).log.ends().log_end_offset == 0
    called: list[bool] = []
    answer.when(lambda: called.append(True))
    assert not called
    leased.hear()
    assert called


def test_after_a_sleep_acknowledgements_wait_for_zookeeper(
    logs: Logs,
) -> None:
    leased = Leased()
    answer = append(logs, (T0, record_batch(3)), lease=leased.lease)
    assert isinstance(answer, DelayedResponse)
    woken: list[bool] = []
    answer.subscribe(lambda: woken.append(True))
    leased.sleep()
    logs.flush()
    assert answer.poll() is None
    woken.clear()
    leased.hear()
    assert woken
    assert results(answer)[0].base_offset == 0


def test_writes_of_a_broker_without_its_id_are_in_doubt(logs: Logs) -> None:
    leased = Leased()
    answer = append(logs, (T0, record_batch(3)), acks="flushed", lease=leased.lease)
    logs.flush()
    leased.sleep()
    leased.lease.end(NotLeaderError("Another broker has the id."))
    error = failure(results(answer)[0])
    assert isinstance(error, BrokerUnavailableError)
    assert "may be there. Another broker has the id." in error.message
    with pytest.raises(NotLeaderError):
        append(logs, (T0, record_batch()), lease=leased.lease)


def test_an_acknowledgement_waits_no_longer_than_its_request(logs: Logs) -> None:
    leased = Leased()
    answer = append(logs, (T0, record_batch()), lease=leased.lease, timeout_ms=5_000)
    assert isinstance(answer, DelayedResponse)
    logs.flush()
    leased.sleep()
    assert answer.poll() is None
    logs.clock.advance(6)
    assert isinstance(failure(results(answer)[0]), BrokerUnavailableError)


# -- topics with schemas ----------------------------------------------------------------------

AVRO = TopicSchemas(value_encoding=Encoding.AVRO, value_subject="s")
COLUMNS = TopicSchemas(value_encoding=Encoding.COLUMNS, value_subject="s")


def with_id(schema_id: int, *, control: bool = False) -> memoryview:
    return encode(arrow_batch([b"v"]), schema_id=schema_id, control=control)


def look_up(answer: Answer) -> None:
    assert isinstance(answer, NotYet)
    answer.when(lambda: None)


def test_schema_ids_are_looked_up_before_anything_is_written(logs: Logs) -> None:
    logs.here.leader_of(T1).log.configure(LogConfig(schemas=AVRO))
    ids = schema_ids({"s": [7]}, logs.clock)
    parts = ((T0, record_batch()), (T1, with_id(7)))
    look_up(append(logs, *parts, acks="written", ids=ids))
    assert logs.here.leader_of(T0).log.ends().log_end_offset == 0
    done = results(append(logs, *parts, acks="written", ids=ids))
    assert [result.error for result in done] == [None, None]


def test_an_id_that_the_subject_lacks_refuses_its_partition_only(logs: Logs) -> None:
    logs.here.leader_of(T1).log.configure(LogConfig(schemas=AVRO))
    ids = schema_ids({"s": [7]}, logs.clock)
    several = joined(with_id(7), with_id(8))
    parts = ((T0, record_batch()), (T1, several))
    look_up(append(logs, *parts, acks="written", ids=ids))
    good, refused = results(append(logs, *parts, acks="written", ids=ids))
    assert good.error is None
    assert isinstance(failure(refused), UnknownSchemaIdError)
    assert logs.here.leader_of(T1).log.ends().log_end_offset == 0


@pytest.mark.parametrize(
    ("schemas", "data", "said"),
    [
        (PLAIN, with_id(7), "plain bytes.*schema id 0, got 7"),
        (COLUMNS, with_id(7), "value.encoding columns.*payload layout 1, got 0"),
        (COLUMNS, with_id(0), "payload layout 1, got 0"),
    ],
)
def test_a_record_batch_of_another_form_is_refused(
    logs: Logs, schemas: TopicSchemas, data: memoryview, said: str
) -> None:
    logs.here.leader_of(T0).log.configure(LogConfig(schemas=schemas))
    ids = schema_ids({"s": [7]}, logs.clock)
    ids.look_up([SchemaUse("s", 7)], lambda: None)
    (refused,) = results(append(logs, (T0, data), acks="written", ids=ids))
    error = failure(refused)
    assert isinstance(error, SchemaMismatchError)
    assert re.search(said, error.message)


@pytest.mark.parametrize("schemas", [PLAIN, AVRO, COLUMNS])
def test_control_record_batches_fit_every_topic(logs: Logs, schemas: TopicSchemas) -> None:
    logs.here.leader_of(T0).log.configure(LogConfig(schemas=schemas))
    (done,) = results(append(logs, (T0, with_id(7, control=True)), acks="written"))
    assert done.error is None


def test_values_in_confluents_wire_format_have_the_id_0(logs: Logs) -> None:
    logs.here.leader_of(T0).log.configure(LogConfig(schemas=AVRO))
    (done,) = results(append(logs, (T0, with_id(0)), acks="written"))
    assert done.error is None


def test_an_append_waits_while_the_lead_of_its_partition_is_handed_over(logs: Logs) -> None:
    holds = Holds()
    hold = holds.begin(T1)
    again: list[bool] = []
    answer = append(logs, (T0, record_batch()), (T1, record_batch()), holds=holds)
    assert isinstance(answer, NotYet)
    answer.when(lambda: again.append(True))
    assert not again
    del logs.here.led[T1]
    holds.end(T1)
    assert again == [True]
    logs.here.leader_of(T0).log.flush()
    first, second = results(append(logs, (T1, record_batch()), (T0, record_batch()), holds=holds,
                                   acks="written"))  # fmt: skip
    assert first.error is not None
    assert isinstance(first.error.to_exception(), NotLeaderError)
    assert second.error is None
    hold.when_over(lambda: again.append(False))
    assert again == [True, False]


def test_an_append_waits_for_no_hand_over_of_which_nobody_knows(logs: Logs) -> None:
    holds = Holds()
    holds.begin(T1).let_go()
    logs.here.leader_of(T1).log.fence(EPOCH, BrokerUnavailableError("It is not known."))
    (result,) = results(append(logs, (T1, record_batch()), holds=holds))
    assert result.error is not None
    assert isinstance(result.error.to_exception(), BrokerUnavailableError)
    assert T1 in holds
