from __future__ import annotations

from typing import get_type_hints

import pytest

from spark_logbus.broker.handlers.fetch import LEAST_PASSED_BYTES
from spark_logbus.errors import (
    BrokerShuttingDownError,
    BrokerUnavailableError,
    ConfigError,
    InvalidRequestError,
    LogbusError,
    UnsupportedVersionError,
)
from spark_logbus.network import NoResponse, Response
from spark_logbus.protocol import (
    APIS,
    PROTOCOL_VERSION,
    Api,
    CreateTopicRequest,
    DeleteTopicRequest,
    FetchPartition,
    FetchRequest,
    Frame,
    HandshakeRequest,
    HandshakeResponse,
    MetadataRequest,
    decode_response,
)
from tests.fakes.broker_parts import T0, record_batch
from tests.servers.wire import append_request
from tests.unit.broker.handlers.asking import Asking


def test_each_api_is_handled_by_what_takes_its_request(asking: Asking) -> None:
    for api, handle in asking.dispatcher._handles.items():
        assert get_type_hints(handle)["request"] is APIS[api].request


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


def test_a_request_without_response_gets_none_when_refused(asking: Asking) -> None:
    asking.dispatcher.refusal = BrokerShuttingDownError("Stopping.")
    request = append_request("t", 0, memoryview(b""), acks="none")
    assert asking.send(Api.APPEND, request) is NoResponse.CLOSE_CONNECTION


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
