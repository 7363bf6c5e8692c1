"""Each field of each request of each API, with values that no client of ours would send."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from spark_logbus.broker.handlers.work_executor import WorkExecutor
from spark_logbus.coordination import paths
from spark_logbus.coordination.cluster.brokers import MOVES, REPLICATES, BrokerRegistration
from spark_logbus.coordination.cluster.spreading import spread
from spark_logbus.coordination.cluster.topic_records import (
    LeadershipClaim,
    TopicNode,
    TopicRecord,
    check_topic,
    record_of,
)
from spark_logbus.coordination.payloads import MovePayload, TopicPayload, decode, encode
from spark_logbus.coordination.writes.decisions import check_decided
from spark_logbus.errors import InvalidRequestError, LogbusError, UnknownTopicError
from spark_logbus.log import LogConfig
from spark_logbus.model import BrokerAddress, TopicPartition, check_name
from spark_logbus.network import DelayedResponse, NoResponse, NotYet, Response
from spark_logbus.protocol import (
    PROTOCOL_VERSION,
    AlterTopicRequest,
    Api,
    AppendPartition,
    AppendRequest,
    ColumnChoice,
    CreateTopicRequest,
    DecideRequest,
    Decision,
    DeleteTopicRequest,
    DiscardRequest,
    ElectRequest,
    FetchPartition,
    FetchRequest,
    FollowedPartition,
    Frame,
    HandshakeRequest,
    IssueTokenRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    Message,
    MetadataRequest,
    MoveRequest,
    PartitionLeft,
    PartitionMove,
    PrepareRequest,
    PublishRequest,
    ReplicateRequest,
    SplitRangePartition,
    SplitRangeRequest,
    StagedCopy,
    StageRequest,
    TopicShares,
    UncleanElectRequest,
    WriteContent,
    WriteShare,
    decode_response,
)
from spark_logbus.record import stamp_producer
from spark_logbus.record.stage_id import stage_id
from spark_logbus.security.identity import Identity
from spark_logbus.security.principals import Principal
from spark_logbus.security.tokens import Grant
from spark_logbus.zookeeper.nodes import Node
from tests.builders.hostile_values import NUMBERS, OTHERS, TEXTS
from tests.builders.record_batches import record_batch
from tests.fakes.broker_parts import EPOCH, TOPIC_ID, Logs, logs_in
from tests.fakes.handlers import Peer, dispatcher_over
from tests.fakes.writers import MemoryWriters
from tests.helpers import wait_until

WRITE = 77
DATA = record_batch(3)
STAGED = bytearray(record_batch(3))
stamp_producer(
    memoryview(STAGED), producer_id=stage_id(WRITE, 0), producer_epoch=0, base_sequence=0
)
SHARES = [WriteShare("t", TOPIC_ID, 0, 3)]

# With no field at its default, so that each is in the message.
REQUESTS: dict[Api, tuple[Message, bytes]] = {
    Api.HANDSHAKE: (
        HandshakeRequest("client", "software", PROTOCOL_VERSION + 1, "TOKEN", b"x"),
        b"",
    ),
    Api.METADATA: (MetadataRequest(["t"], True), b""),
    Api.APPEND: (
        AppendRequest("flushed", 50, [AppendPartition("t", 0, len(DATA))]),
        bytes(DATA),
    ),
    Api.FETCH: (
        FetchRequest(
            50, 1, 1 << 20,
            [FetchPartition("t", 0, 0, 1 << 20, 2, TOPIC_ID, ColumnChoice(["key"], {7: [0]}, 1))],
            1 << 20,
            replica=True,
        ),
        b"",
    ),
    Api.LIST_OFFSETS: (
        ListOffsetsRequest([ListOffsetsPartition("t", 0, "timestamp", 5, TOPIC_ID)]),
        b"",
    ),
    Api.CREATE_TOPIC: (CreateTopicRequest("new", 2, {"retention.ms": "5"}, 2), b""),
    Api.DELETE_TOPIC: (DeleteTopicRequest("t", TOPIC_ID), b""),
    Api.SPLIT_RANGE: (SplitRangeRequest([SplitRangePartition("t", 0, 0, 3, 100)]), b""),
    Api.ALTER_TOPIC: (AlterTopicRequest("t", {"flush.ms": "5"}, ["retention.ms"], 2), b""),
    Api.STAGE: (
        StageRequest(50, [AppendPartition("t", 0, len(STAGED))], "writer", "run"),
        bytes(STAGED),
    ),
    Api.PREPARE: (PrepareRequest(WRITE, "0", SHARES, "writer", True), b""),
    Api.DECIDE: (
        DecideRequest(
            "writer", "run", Decision(1, WRITE, "0", {"t": TopicShares(TOPIC_ID, {0: 3})}),
            settled=5, once=True, abort=True, look=True,
            content=WriteContent(3, "a", "b", "c", "d"), inputs="x", repetition_dropped=True,
            promises={5: "promise"},
        ),
        b"",
    ),
    Api.REPLICATE: (
        ReplicateRequest(
            6, 1, 50, 1 << 20,
            [FollowedPartition("t", 0, TOPIC_ID, 1, EPOCH, "b" * 32, 0, 0, 0, 0, 1 << 20,
                               [StagedCopy(WRITE, 1, 1, 1)], refuses=True)],
            [PartitionLeft("t", 1)],
        ),
        b"",
    ),
    Api.PUBLISH: (PublishRequest(WRITE, "0", SHARES, "writer"), b""),
    Api.DISCARD: (DiscardRequest(WRITE, 1, "writer"), b""),
    Api.ELECT: (ElectRequest("t", [0, 1], TOPIC_ID), b""),
    Api.ELECT_UNCLEAN: (UncleanElectRequest("t", [0, 1], TOPIC_ID, [EPOCH, EPOCH]), b""),
    Api.MOVE: (
        MoveRequest([PartitionMove("t", each, 6, TOPIC_ID, [6, 5]) for each in (0, 1)], 1 << 20),
        b"",
    ),
    Api.ISSUE_TOKEN: (IssueTokenRequest([Grant("topic", "t", ("read", "write"))], 60_000), b""),
}  # fmt: skip
ANNA = Identity(Principal("user", "anna"))


class Topics:
    """Stands in for ``TopicRegistry`` and the cache, and checks what those check."""

    def __init__(self) -> None:
        self.topics = {"t": TopicRecord("t", TOPIC_ID, {0: [5], 1: [5]}, {})}
        self.brokers = [BrokerAddress(5, "h", 1), BrokerAddress(6, "h", 1)]

    def create(
        self, name: str, *, partitions: int, replicas: int, brokers: Any, racks: Any, config: Any
    ) -> TopicRecord:
        check_name("topic", name)
        check_topic(name, partitions=partitions, replicas=replicas, brokers=brokers, config=config)
        assigned = spread(
            partitions=partitions, replicas=replicas, brokers=brokers, racks=racks, existing=[]
        )
        return TopicRecord(name, TOPIC_ID, assigned, config)

    def alter(
        self, name: str, change: Callable[[TopicRecord], TopicRecord]
    ) -> tuple[TopicRecord, TopicRecord]:
        before = self._record(name)
        return before, change(before)

    def delete(self, name: str, *, topic_id: str | None = None) -> None:
        if self._record(name).topic_id != (topic_id or TOPIC_ID):
            raise UnknownTopicError(f"There is no topic {name} with the id {topic_id}.")

    def look_up(self, names: list[str]) -> dict[str, TopicRecord]:
        return {each: self.topics[each] for each in names if each in self.topics}

    def look_up_brokers(self) -> list[Any]:
        return self.brokers

    def get(self, name: str) -> TopicRecord | None:
        check_name("topic", name)
        return self.topics.get(name)

    def leader(self, record: TopicRecord, partition: int) -> tuple[int, int]:
        return record.partitions[partition][0], 0

    def state(self, _: TopicRecord, __: int) -> None:
        return None

    def _record(self, name: str) -> TopicRecord:
        check_name("topic", name)
        if name not in self.topics:
            raise UnknownTopicError(f"There is no topic {name}.")
        return self.topics[name]


class Brokers:
    """Stands in for ``BrokerRegistry``."""

    def registrations(self) -> list[BrokerRegistration]:
        return [
            BrokerRegistration(BrokerAddress(broker_id, "h", 1), "1", 1, MOVES | REPLICATES)
            for broker_id in (5, 6)
        ]


class Moves:
    """Stands in for ``PartitionMoves``, and writes what that writes."""

    def begin(
        self, topic: str, moves: Mapping[int, MovePayload], *, topic_id: str | None
    ) -> TopicRecord:
        there = self._require(topic, moves, topic_id)
        after = msgspec.structs.replace(there, moves=dict(moves))
        decode(TopicPayload, encode(after), path=paths.topic(topic))
        return record_of(topic, after)

    def cancel(self, topic: str, partitions: Collection[int], *, topic_id: str | None) -> set[int]:
        self._require(topic, partitions, topic_id)
        return set()

    def _require(self, topic: str, partitions: Iterable[int], topic_id: str | None) -> TopicPayload:
        paths.topic(topic)
        payload = TopicPayload(id=TOPIC_ID, partitions={0: [5], 1: [5]}, config={})
        for each in partitions:
            where = TopicPartition(topic, each)
            TopicNode(topic, Node(b"", 0, 0, (0, 0)), payload).require(
                LeadershipClaim(where, topic_id)
            )
        return payload


def _moves_to_6(topic_partition: TopicPartition, topic_id: str) -> MovePayload | None:
    return MovePayload(to=[6], since_us=1) if topic_id == TOPIC_ID else None


class World:
    def __init__(self, logs: Logs) -> None:
        self.logs = logs
        self.writers = MemoryWriters()
        self.executor = WorkExecutor("ZooKeeper", clock=logs.clock, max_wait_ms=60_000)
        topics = Topics()
        self._dispatcher = dispatcher_over(
            logs, self.executor, metadata_cache=topics, topics=topics, writers=self.writers,
            moves=Moves(), brokers=Brokers(), standing=_moves_to_6,
        )  # fmt: skip
        logs.lead(TopicPartition("t", 0))
        logs.lead(TopicPartition("t", 1))

    def ask(self, api: Api, tree: Any, payload: bytes) -> Message | None:
        """The response; None where none is wanted. Raises the error that it is."""
        header = msgspec.msgpack.encode(tree)
        frame = Frame(api, PROTOCOL_VERSION, 1, header, memoryview(bytearray(payload)))
        peer = Peer(handshaken=api is not Api.HANDSHAKE, identity=ANNA)
        answer = self._dispatcher.dispatch(peer.as_connection(), frame)
        assert not isinstance(answer, NotYet)
        if isinstance(answer, NoResponse):
            return None

        def poll() -> Response | None:
            assert isinstance(answer, DelayedResponse)
            self.logs.flush()
            return answer.poll()

        if isinstance(answer, DelayedResponse):
            self.logs.clock.advance(61)
        found = wait_until(poll) if isinstance(answer, DelayedResponse) else answer
        assert isinstance(found, Response)
        return decode_response(api, found.header)

    def outcome(self, api: Api, tree: Any, payload: bytes) -> type[LogbusError] | None:
        try:
            self.ask(api, tree, payload)
        except LogbusError as error:
            return type(error)
        return None


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with logs_in(tmp_path / "data", LogConfig(index_interval_bytes=128)) as logs:
        made = World(logs)
        yield made
        made.executor.stop()


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all fields, elements and values."""
    items: list[tuple[Any, Any]] = []
    if isinstance(tree, dict):
        items = list(tree.items())
    elif isinstance(tree, list):
        items = list(enumerate(tree))
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def put(tree: Any, path: tuple[Any, ...], other: Any) -> Any:
    """A copy with the other value in that place."""
    if not path:
        return other
    key, *rest = path
    copied = dict(tree) if isinstance(tree, dict) else list(tree)
    copied[key] = put(tree[key], tuple(rest), other)
    return copied


def hostile(value: Any) -> Iterator[Any]:
    """Yields what may stand in the place of a value: values of its type first, then of any
    other."""
    if isinstance(value, list):
        yield from (value * times for times in (0, 2, 300))
    if isinstance(value, dict):
        one = next(iter(value.values()))
        yield from ({key: one} for key in (*TEXTS, *NUMBERS))
        yield {}
    yield from NUMBERS
    yield from TEXTS
    yield from OTHERS


def test_each_api_has_a_request_with_all_of_its_fields() -> None:
    assert REQUESTS.keys() == set(Api)
    for message, _ in REQUESTS.values():
        _require_all_fields(message)


def _require_all_fields(message: Message) -> None:
    given = msgspec.to_builtins(message, builtin_types=(bytes,))
    for field in msgspec.structs.fields(message):
        assert field.encode_name in given, f"{type(message).__name__}.{field.name} is not tried"
        value = getattr(message, field.name)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Message):
                _require_all_fields(each)


@pytest.mark.parametrize("api", Api)
def test_no_value_of_a_field_gets_more_than_a_typed_error(world: World, api: Api) -> None:
    message, payload = REQUESTS[api]
    tree = msgspec.to_builtins(message, builtin_types=(bytes,))
    outcomes = set()
    for path in places(tree):
        for flags in ({}, {"abort": False}, {"look": False}, {"abort": False, "look": False}):
            if api is not Api.DECIDE and flags:
                continue
            value = tree
            for key in path:
                value = value[key]
            for other in hostile(value):
                asked = put(tree | flags, path, other)
                outcomes.add(world.outcome(api, asked, payload))
    assert LogbusError not in outcomes, "an error of no type"
    assert len(outcomes) > 1, "nothing was refused"
    for state in world.writers.pending().states.values():
        assert state.last is not None
        check_decided(state.last)
        assert set(state.last.topics) <= {"t"}
    world.ask(Api.APPEND, msgspec.to_builtins(REQUESTS[Api.APPEND][0]), bytes(DATA))


@pytest.mark.parametrize("api", [Api.STAGE, Api.PREPARE, Api.DECIDE, Api.PUBLISH])
def test_no_request_names_a_writer_or_run_too_long_to_be_kept(world: World, api: Api) -> None:
    """A broker keeps them for as long as what is staged is there."""
    message, payload = REQUESTS[api]
    tree = msgspec.to_builtins(message, builtin_types=(bytes,))
    for field in tree.keys() & {"writer", "run"}:
        outcome = world.outcome(api, put(tree, (field,), "w" * 501), payload)
        assert outcome is InvalidRequestError


def test_nothing_is_written_outside_of_the_partitions(tmp_path: Path) -> None:
    with logs_in(tmp_path / "data", LogConfig(index_interval_bytes=128)) as logs:
        world = World(logs)
        before = {path.name for path in (tmp_path / "data").iterdir()}
        for api in (Api.STAGE, Api.APPEND):
            message, payload = REQUESTS[api]
            tree = msgspec.to_builtins(message, builtin_types=(bytes,))
            for name in TEXTS:
                world.ask(api, put(tree, ("partitions", 0, "topic"), name), payload)
        assert {path.name for path in (tmp_path / "data").iterdir()} == before
        assert [path.name for path in tmp_path.iterdir()] == ["data"]
        world.executor.stop()
