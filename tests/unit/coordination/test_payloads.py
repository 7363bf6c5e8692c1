from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_logbus.coordination.payloads import (
    BrokerPayload,
    ContentPayload,
    DrainedPayload,
    LastIdPayload,
    LockPayload,
    MirroredTopicPayload,
    MirrorPayload,
    MovePayload,
    OffsetPayload,
    OwnerPayload,
    PartitionState,
    PlannedTopicPayload,
    RewindEpochPayload,
    RewindPayload,
    SchemaPayload,
    SchemaReferencePayload,
    SchemaSettingsPayload,
    SubjectPayload,
    SubjectVersionPayload,
    TopicPayload,
    decode,
    encode,
)
from spark_logbus.zookeeper.unreadable import CorruptNodeError

# As docs/formats/zookeeper.md shows them: these bytes stand in ZooKeeper and must stay readable.
EXAMPLES: list[tuple[msgspec.Struct, bytes]] = [
    (
        BrokerPayload(
            host="10.0.0.5",
            port=9192,
            started_us=1751000000000000,
            version="0.1.0",
            session_timeout_ms=10000,
            local_socket="logbus-5f0c",
            features=3,
            rack="a1",
        ),
        b'{"host":"10.0.0.5","port":9192,"started_us":1751000000000000,"version":"0.1.0",'
        b'"session_timeout_ms":10000,"local_socket":"logbus-5f0c","features":3,"rack":"a1",'
        b'"tls_port":null,"gateway_port":null}',
    ),
    (DrainedPayload(since_us=1), b'{"since_us":1}'),
    (
        TopicPayload(id="5f0c", partitions={0: [1], 1: [2]}, config={"retention.ms": "-1"}),
        b'{"id":"5f0c","partitions":{"0":[1],"1":[2]},"config":{"retention.ms":"-1"}}',
    ),
    (
        TopicPayload(id="5f0c", partitions={0: [1]}, config={}, deleted=True),
        b'{"id":"5f0c","partitions":{"0":[1]},"config":{},"deleted":true}',
    ),
    (
        TopicPayload(
            id="5f0c",
            partitions={0: [1], 1: [2]},
            config={},
            moves={
                0: MovePayload(to=[3], since_us=1751000000000000, throttle=50_000_000),
                1: MovePayload(to=[3], since_us=1751000000000000, error="No room."),
            },
        ),
        b'{"id":"5f0c","partitions":{"0":[1],"1":[2]},"config":{},"moves":{'
        b'"0":{"to":[3],"since_us":1751000000000000,"throttle":50000000},'
        b'"1":{"to":[3],"since_us":1751000000000000,"error":"No room."}}}',
    ),
    (
        LockPayload(name="load /w/flights", holder="a load", since_us=1, token="9d1e"),
        b'{"name":"load /w/flights","holder":"a load","since_us":1,"token":"9d1e"}',
    ),
    (
        MirrorPayload(
            source="zk/a",
            round=17,
            token=5,
            topics={"clicks": PlannedTopicPayload(id="5f0c", ranges={0: (40, 52)})},
            changed_us=1,
        ),
        b'{"source":"zk/a","round":17,"token":5,"topics":{"clicks":{"id":"5f0c","ranges":'
        b'{"0":[40,52]}}},"changed_us":1}',
    ),
    (
        MirroredTopicPayload(
            id="5f0c", target="main.clicks", target_id="77aa", points={0: [(10, 0), (40, 30)]}
        ),
        b'{"id":"5f0c","target":"main.clicks","target_id":"77aa","points":{"0":[[10,0],[40,30]]}}',
    ),
    (
        PartitionState(leader=1, leader_epoch=4, in_sync=[1], end=215941, replicas={1: "8c1f6e0b"}),
        b'{"leader":1,"leader_epoch":4,"in_sync":[1],"end":215941,"replicas":{"1":"8c1f6e0b"}}',
    ),
    (
        PartitionState(leader=1, leader_epoch=4, in_sync=[1]),
        b'{"leader":1,"leader_epoch":4,"in_sync":[1]}',
    ),
    (
        OffsetPayload(offset=42, committed_at_us=1751000000000000, actor="q", topic_id="5f0c"),
        b'{"offset":42,"committed_at_us":1751000000000000,"by":"q","topic_id":"5f0c",'
        b'"rewind_epoch":0}',
    ),
    (RewindEpochPayload(rewind_epoch=2), b'{"rewind_epoch":2}'),
    (
        RewindPayload(positions={"orders": {0: 5}}, reason="bad deploy", when_us=1, actor="ann"),
        b'{"positions":{"orders":{"0":5}},"why":"bad deploy","when_us":1,"by":"ann"}',
    ),
    (
        RewindPayload(
            positions={"orders": {0: 5}},
            reason="bad deploy",
            when_us=1,
            actor="ann",
            description="by 5 records",
        ),
        b'{"positions":{"orders":{"0":5}},"why":"bad deploy","when_us":1,"by":"ann",'
        b'"what":"by 5 records"}',
    ),
    (
        OwnerPayload(
            host="h", pid=7, application=None, since_us=1, session_timeout_ms=10_000, token="9d1e"
        ),
        b'{"host":"h","pid":7,"application":null,"since_us":1,"session_timeout_ms":10000,'
        b'"token":"9d1e"}',
    ),
    (
        OwnerPayload(
            host="h",
            pid=7,
            application=None,
            since_us=1,
            session_timeout_ms=10_000,
            token="9d1e",
            process="6f1f/40/8/88",
        ),
        b'{"host":"h","pid":7,"application":null,"since_us":1,"session_timeout_ms":10000,'
        b'"token":"9d1e","process":"6f1f/40/8/88"}',
    ),
    (
        SubjectPayload(
            versions=[
                SubjectVersionPayload(version=1, id=1, deleted=True),
                SubjectVersionPayload(version=2, id=4, references=[("item", 1)]),
            ],
            compatibility="FULL",
        ),
        b'{"versions":[{"version":1,"id":1,"deleted":true},'
        b'{"version":2,"id":4,"references":[["item",1]]}],"compatibility":"FULL"}',
    ),
    (LastIdPayload(last_id=4), b'{"last_id":4}'),
    (
        SchemaPayload(
            schema='"Item"',
            references=[SchemaReferencePayload(name="Item", subject="item", version=1)],
        ),
        b'{"schema":"\\"Item\\"","references":[{"name":"Item","subject":"item","version":1}]}',
    ),
    (SchemaPayload(deleted="9f2c"), b'{"deleted":"9f2c"}'),
    (ContentPayload(ids=[4]), b'{"ids":[4]}'),
    (SchemaSettingsPayload(mode="READONLY"), b'{"mode":"READONLY"}'),
]
KINDS = [type(payload) for payload, _ in EXAMPLES]


@pytest.mark.parametrize(("payload", "data"), EXAMPLES)
def test_each_payload_has_its_bytes(payload: msgspec.Struct, data: bytes) -> None:
    assert encode(payload) == data
    assert decode(type(payload), data, path="/p") == payload
    assert decode(type(payload), data[:-1] + b',"new":{"x":[]}}', path="/p") == payload


@pytest.mark.parametrize(
    ("payload", "data"),
    [
        (
            OffsetPayload(offset=42, committed_at_us=7, actor="q", topic_id="5f0c", rewind_epoch=3),
            b'{"offset":42,"committed_at_us":7,"by":"q","topic_id":"5f0c","generation":3}',
        ),
        (RewindEpochPayload(rewind_epoch=2, token="9a41"), b'{"generation":2,"token":"9a41"}'),
    ],
)
def test_the_old_name_of_the_rewind_epoch_is_read_and_not_written(
    payload: msgspec.Struct, data: bytes
) -> None:
    found = decode(type(payload), data, path="/p")
    assert found == payload
    assert encode(found) == encode(payload)
    assert b"generation" not in encode(found)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (TopicPayload, b""),
        (TopicPayload, b"null"),
        (TopicPayload, b'{"id":"x","partitions":{"0":[]},"config":{}}'),
        (TopicPayload, b'{"id":"x","partitions":{"-1":[1]},"config":{}}'),
        (TopicPayload, b'{"id":"x","partitions":{"a":[1]},"config":{}}'),
        (OffsetPayload, b'{"offset":-1,"committed_at_us":0,"by":""}'),
        (OffsetPayload, b'{"offset":9223372036854775808,"committed_at_us":0,"by":""}'),
        (OffsetPayload, b'{"offset":1,"committed_at_us":0,"by":"","generation":-1}'),
        (BrokerPayload, b'{"host":"h","port":0,"started_us":1,"version":""}'),
        (PartitionState, b"\xff\xfe"),
        (PartitionState, b'{"x":' + b"[" * 100_000),
    ],
)
def test_garbage_names_its_path(kind: type[msgspec.Struct], data: bytes) -> None:
    with pytest.raises(CorruptNodeError, match="/some/node") as caught:
        decode(kind, data, path="/some/node")
    assert not caught.value.retriable
    assert caught.value.fault == "data"


@given(kind=st.sampled_from(KINDS), data=st.binary(max_size=200))
def test_no_bytes_raise_anything_else(kind: type[msgspec.Struct], data: bytes) -> None:
    with contextlib.suppress(CorruptNodeError):
        decode(kind, data, path="/p")


@given(data=st.data())
def test_damaged_payloads_raise_nothing_else(data: st.DataObject) -> None:
    payload, whole = data.draw(st.sampled_from(EXAMPLES))
    position = data.draw(st.integers(0, len(whole) - 1))
    damaged = whole[:position] + data.draw(st.binary(max_size=3)) + whole[position + 1 :]
    with contextlib.suppress(CorruptNodeError):
        decode(type(payload), damaged, path="/p")
