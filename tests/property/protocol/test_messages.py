"""Every message of every API survives the wire; garbage in its place is a typed error."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_logbus.errors import InvalidRequestError, LogbusError, ProtocolError
from spark_logbus.protocol import (
    APIS,
    Api,
    Message,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from tests.property.examples import examples

DEFAULT = settings(max_examples=examples(25))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(1 << 63), (1 << 64) - 1),
    str: TEXT,
    bytes: st.binary(max_size=100),
    bool: st.booleans(),
    type(None): st.none(),
}
PAIRS = [
    *((api, declared.request) for api, declared in APIS.items()),
    *((api, declared.response) for api, declared in APIS.items()),
]


def any_value(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a field, from msgspec's own view of its type."""
    match kind:
        case msgspec.inspect.StructType():
            return any_message(kind.cls)
        case msgspec.inspect.ListType():
            return st.lists(any_value(kind.item_type), max_size=3)
        case msgspec.inspect.TupleType():
            return st.tuples(*map(any_value, kind.item_types))
        case msgspec.inspect.VarTupleType():
            return st.lists(any_value(kind.item_type), max_size=3).map(tuple)
        case msgspec.inspect.DictType():
            return st.dictionaries(any_value(kind.key_type), any_value(kind.value_type), max_size=3)
        case msgspec.inspect.UnionType():
            return st.one_of([any_value(option) for option in kind.types])
        case msgspec.inspect.IntType():
            return SCALARS[int]
        case msgspec.inspect.StrType():
            return SCALARS[str]
        case msgspec.inspect.BytesType():
            return SCALARS[bytes]
        case msgspec.inspect.BoolType():
            return SCALARS[bool]
        case msgspec.inspect.NoneType():
            return SCALARS[type(None)]
        case _:
            raise AssertionError(f"No strategy for {kind}: add one when a message needs it.")


def any_message(cls: type[Any]) -> st.SearchStrategy[Any]:
    info = msgspec.inspect.type_info(cls)
    assert isinstance(info, msgspec.inspect.StructType)
    return st.builds(cls, **{field.name: any_value(field.type) for field in info.fields})


def send(api: Api, message: Message) -> Message:
    if type(message) is APIS[api].request:
        return decode_request(api, encode_request(message))
    return decode_response(api, encode_response(message))


@pytest.mark.parametrize(("api", "kind"), PAIRS, ids=lambda x: getattr(x, "__name__", None))
@DEFAULT
@given(data=st.data())
def test_round_trip(api: Api, kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(any_message(kind))
    assert send(api, message) == message


@pytest.mark.parametrize(("api", "kind"), PAIRS, ids=lambda x: getattr(x, "__name__", None))
@DEFAULT
@given(data=st.data())
def test_unknown_fields_are_ignored(api: Api, kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(any_message(kind))
    newer = msgspec.to_builtins(message, builtin_types=(bytes,)) | {
        "a field of tomorrow": [1, {"x": None}]
    }
    header = msgspec.msgpack.encode(newer)
    if kind is APIS[api].request:
        assert decode_request(api, header) == message
    else:
        assert decode_response(api, b"\x00" + header) == message


@pytest.mark.parametrize(("api", "kind"), PAIRS, ids=lambda x: getattr(x, "__name__", None))
@DEFAULT
@given(data=st.data())
def test_missing_fields_are_typed_errors(
    api: Api, kind: type[Message], data: st.DataObject
) -> None:
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    fields = msgspec.to_builtins(data.draw(any_message(kind)), builtin_types=(bytes,))
    for field in info.fields:
        header = msgspec.msgpack.encode({k: v for k, v in fields.items() if k != field.name})
        if not field.required:
            assert _decode(api, kind, header) is not None
        else:
            with pytest.raises((InvalidRequestError, ProtocolError), match=field.name):
                _decode(api, kind, header)


def _decode(api: Api, kind: type[Message], header: bytes) -> Message:
    if kind is APIS[api].request:
        return decode_request(api, header)
    return decode_response(api, b"\x00" + header)


@settings(max_examples=examples(200))
@given(st.sampled_from(Api), st.binary(max_size=200))
def test_garbage_is_a_typed_error(api: Api, garbage: bytes) -> None:
    with contextlib.suppress(InvalidRequestError):
        decode_request(api, garbage)
    for header in (garbage, b"\x00" + garbage, b"\x01" + garbage):
        with contextlib.suppress(LogbusError):
            decode_response(api, header)


@settings(max_examples=examples(200))
@given(st.sampled_from(Api), st.data())
def test_damaged_messages_are_typed_errors(api: Api, data: st.DataObject) -> None:
    header = bytearray(encode_request(data.draw(any_message(APIS[api].request))))
    for _ in range(data.draw(st.integers(1, 3))):
        header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(InvalidRequestError):
        decode_request(api, bytes(header))
