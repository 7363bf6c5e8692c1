"""Requests that are nearly valid: made from valid ones by changes that know their structure.

Everything follows from one number. Messages are changed as values (other numbers, types, names,
repetitions, missing and unknown fields), record batches in the fields of their headers, frames
in their lengths, and at last some bits anywhere.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any, Final

import msgspec

from spark_logbus.protocol import (
    PROTOCOL_VERSION,
    AlterTopicRequest,
    Api,
    AppendPartition,
    CreateTopicRequest,
    DecideRequest,
    Decision,
    DeleteTopicRequest,
    DiscardRequest,
    FetchPartition,
    FetchRequest,
    HandshakeRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    Message,
    MetadataRequest,
    PrepareRequest,
    PublishRequest,
    SplitRangePartition,
    SplitRangeRequest,
    StageRequest,
    TopicShares,
    WriteShare,
    frame_head,
)
from spark_logbus.record import HEADER_SIZE, stamp_producer
from spark_logbus.record import format as fmt
from spark_logbus.record.stage_id import stage_id
from tests.builders.forged import reseal
from tests.builders.hostile_values import NUMBERS, OTHERS, TEXTS, TOPIC
from tests.builders.record_batches import joined, record_batch
from tests.servers.wire import append_request

WRITE: Final = 77
MAX_TEXT: Final = 8 << 20  # characters of a changed message, written out


def valid(dice: random.Random) -> tuple[Api, Message, bytes]:
    """An API, a message for it, and a payload."""
    batch = record_batch(dice.randint(1, 3), payload=dice.randbytes(dice.choice((0, 8, 300, 5000))))
    data = joined(*[batch] * dice.choice((1, 1, 2, 5)))
    offset = dice.choice((0, 1, 5, 1 << 40))
    share = WriteShare(TOPIC, "a" * 32, 0, 3)
    makers: list[Callable[[], tuple[Api, Message, bytes]]] = [
        lambda: (Api.HANDSHAKE, HandshakeRequest("fuzzer"), b""),
        lambda: (Api.METADATA, MetadataRequest(dice.choice((None, [TOPIC])), True), b""),
        lambda: (
            Api.APPEND,
            append_request(TOPIC, 0, data, acks=dice.choice(("none", "written", "flushed"))),
            bytes(data),
        ),
        lambda: (
            Api.FETCH,
            FetchRequest(
                dice.choice((0, 50)),
                1,
                1 << 20,
                [FetchPartition(TOPIC, 0, offset, 1)],
                max_bytes_by_descriptor=dice.choice((0, 1 << 20, 1 << 40)),
            ),
            b"",
        ),
        lambda: (
            Api.LIST_OFFSETS,
            ListOffsetsRequest([ListOffsetsPartition(TOPIC, 0, "timestamp", dice.choice(NUMBERS))]),
            b"",
        ),
        lambda: (
            Api.SPLIT_RANGE,
            SplitRangeRequest([SplitRangePartition(TOPIC, 0, 0, offset, 1)]),
            b"",
        ),
        lambda: (Api.CREATE_TOPIC, CreateTopicRequest(TOPIC, 1, {"retention.ms": "-1"}), b""),
        lambda: (
            Api.ALTER_TOPIC,
            AlterTopicRequest(TOPIC, {"flush.ms": "5"}, ["flush.ms"], 2),
            b"",
        ),
        lambda: (Api.DELETE_TOPIC, DeleteTopicRequest(TOPIC), b""),
        lambda: staging(dice, data),
        lambda: (Api.PREPARE, PrepareRequest(WRITE, "0-1,7", [share]), b""),
        lambda: (
            Api.DECIDE,
            DecideRequest(
                "writer",
                "run",
                Decision(1, WRITE, "0-1,7", {TOPIC: TopicShares("a" * 32, {0: 3})}),
                abort=dice.random() < 0.3,
                look=dice.random() < 0.3,
            ),
            b"",
        ),
        lambda: (Api.PUBLISH, PublishRequest(WRITE, "0-1,7", [share]), b""),
        lambda: (Api.DISCARD, DiscardRequest(WRITE, dice.choice((None, 0))), b""),
    ]
    weights = [2, 3, 9, 6, 3, 3, 2, 2, 1, 6, 2, 4, 2, 1]
    return dice.choices(makers, weights)[0]()


def staging(dice: random.Random, data: memoryview) -> tuple[Api, Message, bytes]:
    stamp_producer(
        data, producer_id=stage_id(WRITE, dice.choice((0, 7))), producer_epoch=0, base_sequence=0
    )
    return Api.STAGE, StageRequest(50, [AppendPartition(TOPIC, 0, len(data))]), bytes(data)


def nearly_valid(dice: random.Random) -> bytes:
    """The bytes of one request, some of it changed; sometimes nothing."""
    api, message, payload = valid(dice)
    tree = msgspec.to_builtins(message)
    for _ in range(dice.choice((0, 1, 1, 2, 4))):
        tree = changed(tree, dice)
    try:
        header = msgspec.msgpack.encode(tree)
    except (OverflowError, UnicodeEncodeError):
        header = b"\x80"
    if payload and dice.random() < 0.6:
        payload = damaged(payload, dice)
    number = int(api) if dice.random() < 0.97 else dice.randrange(1 << 16)
    head = frame_head(
        api=number,
        version=PROTOCOL_VERSION if dice.random() < 0.98 else dice.randrange(1 << 16),
        correlation=dice.randrange(1 << 32),
        header=header,
        payload_length=len(payload),
    )
    data = bytearray(head + payload)
    if dice.random() < 0.1:  # lengths that lie
        struct.pack_into("<I", data, dice.choice((0, 12)), dice.choice(NUMBERS) & 0xFFFF_FFFF)
    if dice.random() < 0.2:
        for _ in range(dice.randint(1, 4)):
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    return bytes(data)


def changed(tree: Any, dice: random.Random, *, depth: int = 0) -> Any:
    """One change somewhere in a message."""
    if isinstance(tree, dict) and tree and dice.random() < 0.9:
        key = dice.choice(list(tree))
        kind = dice.random()
        if kind < 0.05:
            return {name: value for name, value in tree.items() if name != key}
        if kind < 0.1:
            return {**tree, dice.choice(TEXTS): nested(dice)}
        return {**tree, key: changed(tree[key], dice, depth=depth + 1)}
    if isinstance(tree, list) and tree and dice.random() < 0.9:
        if dice.random() < 0.3:
            times = dice.choice((0, 2, 3, 200))
            # A repetition of repetitions would take longer to make than to refuse.
            return tree * (times if len(repr(tree)) * times <= MAX_TEXT else 1)
        at = dice.randrange(len(tree))
        return [*tree[:at], changed(tree[at], dice, depth=depth + 1), *tree[at + 1 :]]
    if isinstance(tree, int) and dice.random() < 0.8:
        return dice.choice(NUMBERS)
    if isinstance(tree, str) and dice.random() < 0.8:
        return dice.choice(TEXTS)
    return dice.choice((dice.choice(NUMBERS), dice.choice(TEXTS), dice.choice(OTHERS)))


def nested(dice: random.Random) -> Any:
    value: Any = dice.choice(OTHERS)
    for _ in range(dice.choice((1, 10, 400))):
        value = [value]
    return value


def damaged(payload: bytes, dice: random.Random) -> bytes:
    """Record batches with other numbers in their headers, cut, repeated or with other bits."""
    data = bytearray(payload)
    for _ in range(dice.randint(1, 3)):
        kind = dice.random()
        if kind < 0.5:
            at = dice.randrange(0, HEADER_SIZE - 4)
            struct.pack_into("<I", data, at, dice.choice(NUMBERS) & 0xFFFF_FFFF)
        elif kind < 0.7:
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        elif kind < 0.85:
            data = data[: max(HEADER_SIZE, dice.randrange(len(data)))]
        else:
            data += data[: dice.randrange(1, len(data) + 1)]
    if dice.random() < 0.7 and len(data) >= HEADER_SIZE + fmt.ALIGNMENT:
        reseal(data)
    return bytes(data)
