"""Messages: the number of each API, tolerance of newer peers, typed errors for broken headers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from spark_logbus.errors import (
    InvalidRequestError,
    LogbusError,
    NotLeaderError,
    ProtocolError,
    StorageError,
    UnsupportedVersionError,
)
from spark_logbus.protocol import (
    APIS,
    PROTOCOL_VERSION,
    Api,
    CreateTopicRequest,
    Decision,
    DeleteTopicRequest,
    DeleteTopicResponse,
    FetchPartition,
    FetchRequest,
    HandshakeRequest,
    MetadataRequest,
    MetadataResponse,
    TopicShares,
    check_api,
    decode_request,
    decode_response,
    encode_error,
    encode_request,
    encode_response,
    error_info,
)
from spark_logbus.protocol.messages.api import ApiDeclaration, Need
from spark_logbus.protocol.messages.error import MAX_ERROR_MESSAGE_CHARS
from spark_logbus.security.acls import Operation, Resource

pack = msgspec.msgpack.encode
OK, ERROR = b"\x00", b"\x01"


def test_api_numbers_never_change() -> None:
    assert {api.name: int(api) for api in Api} == {
        "HANDSHAKE": 1,
        "METADATA": 2,
        "APPEND": 3,
        "FETCH": 4,
        "LIST_OFFSETS": 5,
        "CREATE_TOPIC": 6,
        "DELETE_TOPIC": 7,
        "SPLIT_RANGE": 8,
        "ALTER_TOPIC": 9,
        "STAGE": 10,
        "PREPARE": 11,
        "DECIDE": 12,
        "PUBLISH": 13,
        "DISCARD": 14,
        "REPLICATE": 15,
        "MOVE": 16,
        "ELECT": 17,
        "ELECT_UNCLEAN": 18,
        "ISSUE_TOKEN": 19,
    }
    assert set(APIS) == set(Api)


def test_every_api_needs_a_right() -> None:
    topic, cluster = (Resource.TOPIC, "orders"), (Resource.CLUSTER, "*")
    writer = (Resource.WRITER, "etl")
    assert {api: _needs(declared) for api, declared in APIS.items()} == {
        **dict.fromkeys((Api.HANDSHAKE, Api.ISSUE_TOKEN), ()),
        # Handlers look at each part of these by themselves.
        **dict.fromkeys((Api.METADATA, Api.DISCARD), ()),
        **dict.fromkeys((Api.APPEND, Api.STAGE), ((Operation.WRITE, *topic),)),
        **dict.fromkeys(
            (Api.PREPARE, Api.PUBLISH), ((Operation.WRITE, *topic), (Operation.WRITE, *writer))
        ),
        Api.DECIDE: ((Operation.WRITE, *writer), (Operation.WRITE, *topic)),
        Api.FETCH: ((Operation.READ, *topic),),
        **dict.fromkeys((Api.LIST_OFFSETS, Api.SPLIT_RANGE), ((Operation.DESCRIBE, *topic),)),
        Api.CREATE_TOPIC: ((Operation.CREATE, *topic),),
        Api.ALTER_TOPIC: ((Operation.ALTER, *topic),),
        Api.DELETE_TOPIC: ((Operation.DELETE, *topic),),
        Api.REPLICATE: None,
        **dict.fromkeys((Api.MOVE, Api.ELECT, Api.ELECT_UNCLEAN), ((Operation.ALTER, *cluster),)),
    }


def _needs(declared: ApiDeclaration) -> tuple[Need, ...] | None:
    """Returns what a request of that API for the topic ``orders`` needs."""
    if declared.needs is None:
        return None
    names = {field.name for field in msgspec.structs.fields(declared.request)}
    known = {
        "partitions": [SimpleNamespace(topic="orders"), SimpleNamespace(topic="orders")],
        "writer": "etl",
        "decision": Decision(0, 0, "", {"orders": TopicShares("", {})}),
        "name": "orders",
    }
    given = SimpleNamespace(**{name: known.get(name) for name in names})
    return tuple(declared.needs(given))


def test_what_a_request_lists_is_declared_as_its_entries() -> None:
    listing = {}
    for api, declared in APIS.items():
        fields = msgspec.structs.fields(declared.request)
        names: dict[str, object] = {field.name: field.name for field in fields}
        if api is Api.DECIDE:
            names["decision"] = Decision(0, 0, "", cast(dict[str, TopicShares], "topics"))
        listing[api] = declared.entries(declared.request(**names))
    assert listing == {
        **dict.fromkeys(Api),
        **dict.fromkeys((Api.METADATA, Api.DECIDE), "topics"),
        **dict.fromkeys((Api.APPEND, Api.FETCH, Api.LIST_OFFSETS, Api.SPLIT_RANGE), "partitions"),
        **dict.fromkeys((Api.STAGE, Api.PREPARE, Api.PUBLISH, Api.REPLICATE), "partitions"),
        **dict.fromkeys((Api.ELECT, Api.ELECT_UNCLEAN), "partitions"),
        Api.ISSUE_TOKEN: "grants",
        Api.MOVE: "moves",
    }


def test_check_api() -> None:
    assert check_api(4, PROTOCOL_VERSION) is Api.FETCH
    for api, version in ((0, 1), (99, 1), (65_535, 1), (4, 0), (4, 2)):
        with pytest.raises(UnsupportedVersionError):
            check_api(api, version)


def test_the_bytes_are_those_of_the_documentation() -> None:
    request = FetchRequest(500, 1, 1 << 20, [FetchPartition("clicks", 0, 42, 1 << 20)])
    assert msgspec.msgpack.decode(encode_request(request)) == {
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "partitions": [{"topic": "clicks", "partition": 0, "offset": 42, "max_bytes": 1 << 20}],
    }
    assert encode_response(DeleteTopicResponse()) == OK + b"\x80"
    assert encode_error(NotLeaderError("no"))[:1] == ERROR


def test_fields_of_a_newer_peer_are_ignored() -> None:
    newer = {"name": "t", "partitions": 2, "newest": [{"deep": {"er": [1, 2.5, None]}}]}
    assert decode_request(Api.CREATE_TOPIC, pack(newer)) == CreateTopicRequest("t", 2)
    response = OK + pack({"brokers": [], "topics": [], "controller": 5})
    assert decode_response(Api.METADATA, response) == MetadataResponse([], [])


def test_absent_fields_take_their_defaults() -> None:
    assert decode_request(Api.METADATA, b"\x80") == MetadataRequest(topics=None, ends=False)
    assert decode_request(Api.HANDSHAKE, b"\x80") == HandshakeRequest()


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\x80",
        b"\xc0",
        b"\xc1",
        b"garbage",
        pack([1, 2]),
        pack({"name": "t"}),
        pack({"name": "t", "partitions": None}),
        pack({"name": "t", "partitions": 1.0}),
        pack({"name": "t", "partitions": "1"}),
        pack({"name": 5, "partitions": 1}),
        pack({"name": "t", "partitions": 1, "config": {"a": 1}}),
        pack({"name": "t", "partitions": 1}) + b"tail",
        b"\x82\xa4name\xa2\xff\xfe\xaapartitions\x01",  # not UTF-8
        b"\x81\xa4name\xdb\xff\xff\xff\xff",  # a string of 4 GiB
        b"\x81\xa6config\xdf\xff\xff\xff\xff",  # a map of 4 billion entries
        b"\x81\xa1x\xdd\xff\xff\xff\xff",  # an unknown array of 4 billion
        b"\x81\xa1x" + b"\x91" * 500_000 + b"\xc0",  # arrays in arrays
        b"\x81\xa1x" + b"\x81\xa1x" * 100_000 + b"\xc0",  # maps in maps
        b"\x81\x01\x01",
        b"\x81\xa4name\xc7\x01\x05a",
    ],
)
def test_headers_that_are_not_the_message(header: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="create_topic"):
        decode_request(Api.CREATE_TOPIC, header)
    with pytest.raises(ProtocolError, match="create_topic"):
        decode_response(Api.CREATE_TOPIC, OK + header)
    with pytest.raises(ProtocolError, match="create_topic"):
        decode_response(Api.CREATE_TOPIC, ERROR + header)


def test_an_announced_list_takes_no_memory() -> None:
    header = b"\x81\xaapartitions\xdd\x7f\xff\xff\xff"  # 2 billion
    with pytest.raises(InvalidRequestError):
        decode_request(Api.LIST_OFFSETS, header)


@pytest.mark.parametrize("header", [b"", b"\x02\x80", b"\x80", b"\xff"])
def test_a_response_starts_with_ok_or_error(header: bytes) -> None:
    with pytest.raises(ProtocolError, match="response starts with"):
        decode_response(Api.DELETE_TOPIC, header)


@pytest.mark.parametrize(
    "request_message",
    [DeleteTopicRequest("\udcff"), CreateTopicRequest("t", 1 << 64)],
)
def test_what_cannot_be_sent_is_the_callers_fault(request_message: Any) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be sent"):
        encode_request(request_message)


def test_defaults_that_are_lists_or_maps_are_not_shared() -> None:
    one, two = CreateTopicRequest("a", 1), CreateTopicRequest("b", 1)
    one.config["retention.ms"] = "1"
    assert two.config == {}


class TestErrors:
    def test_one_with_text_that_utf8_cannot_express(self) -> None:
        with pytest.raises(StorageError, match=r"bad name 'a\\udcff'"):
            decode_response(Api.FETCH, encode_error(StorageError("bad name 'a\udcff'")))

    def test_one_that_quotes_a_long_value_is_cut(self) -> None:
        info = error_info(InvalidRequestError("x" * 10_000_000))
        assert len(info.message) == MAX_ERROR_MESSAGE_CHARS + 3
        assert info.message.endswith("x...")

    @pytest.mark.parametrize(
        ("error", "message"),
        [
            (StorageError(), "StorageError"),
            (StorageError(5), "5"),
            (StorageError("a", "b"), "a"),
        ],
    )
    def test_odd_arguments(self, error: LogbusError, message: str) -> None:
        assert error_info(error).message == message

    @pytest.mark.parametrize("code", [-1, 0, 999, 1 << 40])
    def test_one_that_this_release_does_not_know(self, code: int) -> None:
        header = ERROR + pack({"code": code, "message": "from the future", "hint": "upgrade"})
        with pytest.raises(LogbusError, match="from the future") as raised:
            decode_response(Api.FETCH, header)
        assert type(raised.value) is LogbusError
