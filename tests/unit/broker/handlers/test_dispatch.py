from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_logbus.broker.handlers.coordination_executor import CoordinationExecutor
from spark_logbus.broker.handlers.fetch import LEAST_PASSED_BYTES
from spark_logbus.broker.network import Answer, DelayedResponse, NoResponse, Response
from spark_logbus.errors import (
    BrokerShuttingDownError,
    BrokerUnavailableError,
    ConfigError,
    InvalidRequestError,
    LogbusError,
    NotLeaderError,
    UnsupportedVersionError,
)
from spark_logbus.log import LogConfig
from spark_logbus.protocol import (
    PROTOCOL_VERSION,
    Api,
    CreateTopicRequest,
    DeleteTopicRequest,
    FetchPartition,
    FetchRequest,
    Frame,
    HandshakeRequest,
    HandshakeResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResult,
    Message,
    MetadataRequest,
    SplitRangePartition,
    SplitRangeRequest,
    SplitRangeResponse,
    SplitRangeResult,
    decode_response,
    encode_request,
)
from tests.fakes.broker_parts import T0, Logs, logs_in, record_batch
from tests.fakes.clock import NOW_US, SECOND
from tests.fakes.handlers import Peer, dispatcher_over
from tests.fakes.log_directory import SlowFollower
from tests.helpers import wait_until
from tests.servers.wire import append_request


class Asking:
    def __init__(self, logs: Logs) -> None:
        self.logs = logs
        self.metadata_cache = SimpleNamespace(brokers=[], topics={})
        self.peer = Peer()
        self.executor = CoordinationExecutor(clock=logs.clock, max_wait_ms=60_000)
        self.dispatcher = dispatcher_over(logs, self.executor, metadata_cache=self.metadata_cache)

    def frame(self, frame: Frame) -> Answer:
        return self.dispatcher.dispatch(self.peer.as_connection(), frame)

    def send(self, api: Api, message: Message, payload: bytes = b"") -> Answer:
        data = memoryview(bytearray(payload))
        return self.frame(Frame(api, PROTOCOL_VERSION, 1, encode_request(message), data))

    def call(self, api: Api, message: Message) -> Message:
        answer = self.send(api, message)
        response = wait_until(answer.poll) if isinstance(answer, DelayedResponse) else answer
        assert isinstance(response, Response)
        return decode_response(api, response.header)


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Asking]:
    config = LogConfig(index_interval_bytes=128)
    with logs_in(tmp_path / "data", config) as logs:
        asking = Asking(logs)
        asking.peer.handshaken = True
        yield asking
        asking.executor.stop()


def fill(logs: Logs, count: int) -> None:
    log = logs.lead(T0)
    for number in range(count):
        stamp = NOW_US + number * SECOND
        log.append_as_leader(record_batch(timestamps=(stamp, stamp)), leader_epoch=0)
    logs.flush()


# -- handshake --------------------------------------------------------------------------------


def test_the_handshake_tells_the_limits(asking: Asking) -> None:
    asking.peer.handshaken = False
    response = asking.call(Api.HANDSHAKE, HandshakeRequest())
    assert isinstance(response, HandshakeResponse)
    assert (response.broker_id, response.protocol_version) == (5, PROTOCOL_VERSION)
    assert response.max_frame_bytes == 64 << 20
    assert response.max_record_batch_bytes == 16 << 20
    assert asking.peer.handshaken


def test_nothing_goes_before_the_handshake(asking: Asking) -> None:
    asking.peer.handshaken = False
    with pytest.raises(InvalidRequestError, match="must be a handshake"):
        asking.call(Api.METADATA, MetadataRequest())


def test_a_client_that_is_too_old(asking: Asking) -> None:
    asking.peer.handshaken = False
    with pytest.raises(InvalidRequestError, match="upgrade the client"):
        asking.call(Api.HANDSHAKE, HandshakeRequest(protocol_version=0))
    assert not asking.peer.handshaken


@pytest.mark.parametrize(
    ("api", "version", "header", "error"),
    [
        (99, 1, b"\x80", UnsupportedVersionError),
        (0, 1, b"\x80", UnsupportedVersionError),
        (Api.METADATA, 2, b"\x80", UnsupportedVersionError),
        (Api.FETCH, 1, b"\xc1", InvalidRequestError),
        (Api.FETCH, 1, b"\x80", InvalidRequestError),
        (Api.CREATE_TOPIC, 1, b"\x91" * 1000, InvalidRequestError),
    ],
)
def test_requests_that_cannot_be_understood(
    asking: Asking, api: int, version: int, header: bytes, error: type[LogbusError]
) -> None:
    answer = asking.frame(Frame(api, version, 1, header, memoryview(b"")))
    assert isinstance(answer, Response)
    with pytest.raises(error):
        decode_response(Api.METADATA, answer.header)


# -- refusing ---------------------------------------------------------------------------------


def test_a_broker_that_stops_refuses_all_but_handshakes(asking: Asking) -> None:
    asking.dispatcher.refusal = BrokerShuttingDownError("Stopping.")
    with pytest.raises(BrokerShuttingDownError):
        asking.call(Api.METADATA, MetadataRequest([]))
    with pytest.raises(BrokerShuttingDownError):
        asking.call(Api.APPEND, append_request("t", 0, memoryview(b"")))
    asking.call(Api.HANDSHAKE, HandshakeRequest())


def test_a_request_that_wants_no_answer_gets_none_even_when_refused(asking: Asking) -> None:
    asking.dispatcher.refusal = BrokerShuttingDownError("Stopping.")
    request = append_request("t", 0, memoryview(b""), acks="none")
    assert asking.send(Api.APPEND, request) is NoResponse.CLOSE_CONNECTION


# -- offsets ----------------------------------------------------------------------------------


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


# -- topics -----------------------------------------------------------------------------------


def test_a_topic_that_no_broker_could_serve_is_not_created(asking: Asking) -> None:
    with pytest.raises(ConfigError, match=r"retention\.ms"):
        asking.call(Api.CREATE_TOPIC, CreateTopicRequest("t", 1, {"retention.msec": "5"}))
    with pytest.raises(BrokerUnavailableError):
        asking.call(Api.CREATE_TOPIC, CreateTopicRequest("t", 1))


def test_a_bug_is_not_an_answer(asking: Asking) -> None:
    with pytest.raises(AttributeError):
        asking.call(Api.DELETE_TOPIC, DeleteTopicRequest("t"))


@pytest.mark.parametrize("local", [True, False])
def test_files_are_for_clients_that_take_descriptors(asking: Asking, local: bool) -> None:
    asking.peer.takes_descriptors = local
    data = record_batch(payload=bytes(LEAST_PASSED_BYTES))
    asking.logs.lead(T0).append_as_leader(data, leader_epoch=0)
    asking.logs.flush()
    wanted = [FetchPartition(T0.topic, T0.partition, 0, 1)]
    answer = asking.send(Api.FETCH, FetchRequest(0, 1, 1, wanted, max_bytes_by_descriptor=1 << 30))
    assert isinstance(answer, Response)
    assert (answer.file is not None) == local
    assert answer.payload_length == len(data)
