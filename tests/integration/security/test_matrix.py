"""Every API asked by every kind of principal, on every listener, under every kind of rule."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from spark_logbus.errors import AuthenticationError, LogbusError, NotAuthorizedError
from spark_logbus.protocol import (
    APIS,
    AlterTopicRequest,
    Api,
    AppendPartition,
    AppendRequest,
    CreateTopicRequest,
    DecideRequest,
    Decision,
    DeleteTopicRequest,
    DiscardRequest,
    ElectRequest,
    FetchPartition,
    FetchRequest,
    HandshakeRequest,
    IssueTokenRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    Message,
    MetadataRequest,
    MetadataResponse,
    MoveRequest,
    PartitionMove,
    PrepareRequest,
    PublishRequest,
    ReplicateRequest,
    SplitRangePartition,
    SplitRangeRequest,
    StageRequest,
    TopicShares,
    UncleanElectRequest,
    WriteShare,
    decode_response,
)
from spark_logbus.record import stamp_producer
from spark_logbus.record.stage_id import stage_id
from tests.builders.record_batches import record_batch
from tests.integration.security.actors import (
    LISTENERS,
    NAMES,
    OTHER,
    PLAIN,
    UNIX,
    Actor,
    Guarded,
    add_all,
    guarded_broker,
)
from tests.servers.broker import is_led
from tests.servers.wire import EndedError, Wire, append_request, fetch_request

TOPIC_ID = "a" * 32
WRITES = itertools.count(1_000)

Request = tuple[Message, bytes]


@dataclass(frozen=True)
class Row:
    """One API: a request that names topics, and the rights that it needs: operations on kinds."""

    make: Callable[[list[str]], Request]
    needs: tuple[tuple[str, str], ...] = ()
    #: None but brokers.
    brokers_only: bool = False
    #: Nobody who has shown a token.
    no_tokens: bool = False
    #: Takes several topics.
    several: bool = False


def append(topics: list[str]) -> Request:
    data = record_batch()
    parts = [AppendPartition(topic, 0, len(data)) for topic in topics]
    return AppendRequest("flushed", 20_000, parts), bytes(data) * len(topics)


def stage(topics: list[str]) -> Request:
    data = record_batch()
    stamp_producer(data, producer_id=stage_id(next(WRITES), 0), producer_epoch=0, base_sequence=0)
    parts = [AppendPartition(topic, 0, len(data)) for topic in topics]
    return StageRequest(20_000, parts, "w", "run"), bytes(data) * len(topics)


def shares(topics: list[str]) -> list[WriteShare]:
    return [WriteShare(topic, TOPIC_ID, 0, 3) for topic in topics]


def decision(topics: list[str]) -> Decision:
    return Decision(
        1, next(WRITES), "0", {topic: TopicShares(TOPIC_ID, {0: 3}) for topic in topics}
    )


#: Whose write it is decides of DISCARD, beside the rights of topics.
ROWS: dict[Api, Row] = {
    Api.HANDSHAKE: Row(lambda _: (HandshakeRequest("again"), b"")),
    Api.METADATA: Row(lambda topics: (MetadataRequest(topics), b""), (("describe", "topic"),)),
    Api.APPEND: Row(append, (("write", "topic"),), several=True),
    Api.FETCH: Row(
        lambda topics: (
            FetchRequest(0, 1, 1 << 20, [FetchPartition(each, 0, 0, 1 << 20) for each in topics]),
            b"",
        ),
        (("read", "topic"),),
        several=True,
    ),
    Api.LIST_OFFSETS: Row(
        lambda topics: (
            ListOffsetsRequest([ListOffsetsPartition(each, 0, "latest") for each in topics]),
            b"",
        ),
        (("describe", "topic"),),
        several=True,
    ),
    Api.SPLIT_RANGE: Row(
        lambda topics: (
            SplitRangeRequest([SplitRangePartition(each, 0, 0, 1, 1) for each in topics]),
            b"",
        ),
        (("describe", "topic"),),
        several=True,
    ),
    Api.CREATE_TOPIC: Row(
        lambda topics: (CreateTopicRequest(topics[0], 1), b""), (("create", "topic"),)
    ),
    Api.ALTER_TOPIC: Row(
        lambda topics: (AlterTopicRequest(topics[0], unset=["flush.ms"]), b""),
        (("alter", "topic"),),
    ),
    Api.DELETE_TOPIC: Row(
        lambda topics: (DeleteTopicRequest(topics[0], TOPIC_ID), b""), (("delete", "topic"),)
    ),
    Api.STAGE: Row(stage, (("write", "topic"),), several=True),
    Api.PREPARE: Row(
        lambda topics: (PrepareRequest(next(WRITES), "0", shares(topics), "w"), b""),
        (("write", "topic"), ("write", "writer")),
        several=True,
    ),
    Api.DECIDE: Row(
        lambda topics: (DecideRequest("w", "run", decision(topics), look=True), b""),
        (("write", "topic"), ("write", "writer")),
        several=True,
    ),
    Api.PUBLISH: Row(
        lambda topics: (PublishRequest(next(WRITES), "0", shares(topics), "w"), b""),
        (("write", "topic"), ("write", "writer")),
        several=True,
    ),
    Api.DISCARD: Row(lambda _: (DiscardRequest(next(WRITES)), b"")),
    Api.REPLICATE: Row(lambda _: (ReplicateRequest(99, 1, 0, 1 << 20), b""), brokers_only=True),
    Api.MOVE: Row(
        lambda topics: (MoveRequest([PartitionMove(each, 0) for each in topics]), b""),
        (("alter", "cluster"),),
    ),
    Api.ELECT: Row(lambda topics: (ElectRequest(topics[0], [0]), b""), (("alter", "cluster"),)),
    Api.ELECT_UNCLEAN: Row(
        lambda topics: (UncleanElectRequest(topics[0], [0]), b""), (("alter", "cluster"),)
    ),
    Api.ISSUE_TOKEN: Row(lambda _: (IssueTokenRequest([], 1_000), b""), no_tokens=True),
}
SEVERAL = [api for api, row in ROWS.items() if row.several]


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory, new_chroot: Callable[[], str]
) -> Iterator[Guarded]:
    with guarded_broker(tmp_path_factory.mktemp("matrix"), new_chroot()) as found:
        add_all(found, is_root=os.geteuid() == 0)
        yield found


class Connections:
    """A connection of each actor at each listener, opened when it is first needed."""

    def __init__(self, guarded: Guarded) -> None:
        self._guarded = guarded
        self._open: dict[tuple[str, str], Wire] = {}

    def of(self, actor: Actor, listener: str) -> Wire:
        found = self._open.pop((actor.name, listener), None)
        return self._guarded.enter(actor, listener) if found is None else found

    def keep(self, actor: Actor, listener: str, wire: Wire) -> None:
        self._open[actor.name, listener] = wire

    def close(self) -> None:
        for each in self._open.values():
            each.sock.close()


def is_let_through(wire: Wire, api: Api, topic: str) -> bool:
    """Sends a request; tells if the broker did more than to refuse it."""
    message, payload = ROWS[api].make([topic])
    try:
        answer = wire.call(api, message, APIS[api].response, payload)
    except (NotAuthorizedError, AuthenticationError):
        return False
    except LogbusError:
        return True
    if isinstance(answer, MetadataResponse):
        return [each.name for each in answer.topics] == [topic]
    # Whose write it is, is said of each partition.
    errors = [each.error for each in getattr(answer, "results", ())]
    return not any(each and each.code == NotAuthorizedError.code for each in errors)


def may(actor: Actor, api: Api, topic: str) -> bool:
    row = ROWS[api]
    if row.brokers_only:
        return actor.is_broker
    if row.no_tokens:
        return not actor.has_token and not actor.is_broker
    return all(
        actor.may(operation, kind, topic if kind == "topic" else NAMES[kind])
        for operation, kind in row.needs
    )


def check(guarded: Guarded, cells: list[tuple[Actor, Api, str, str]]) -> None:
    connections, wrong = Connections(guarded), []
    for actor, api, listener, topic in cells:
        if actor.principal is None:
            # Not even an answer to a request: it was refused before.
            with guarded.enter(actor, listener) as wire:
                wrong += [(actor.name, api, listener)] * does_anything(wire, api, topic)
            continue
        wire = connections.of(actor, listener)
        if is_let_through(wire, api, topic) != may(actor, api, topic):
            wrong.append((actor.name, api, listener))
        connections.keep(actor, listener, wire)
    connections.close()
    assert not wrong


def does_anything(wire: Wire, api: Api, topic: str) -> bool:
    """Tells if a broker does what is asked on a connection that was refused."""
    message, payload = ROWS[api].make([topic])
    try:
        wire.call(api, message, APIS[api].response, payload)
    except (LogbusError, EndedError):
        return False
    return True


def test_every_api_has_a_row() -> None:
    assert {*ROWS} == {*Api}
    assert {api for api, row in ROWS.items() if row.brokers_only} == {
        api for api, declared in APIS.items() if declared.needs is None
    }


def test_who_may_ask_what_where_under_which_rules(guarded: Guarded) -> None:
    """All actors with all APIs, each pair on one listener; the slow test takes all listeners."""
    cells = []
    for number, (actor, api) in enumerate(itertools.product(guarded.actors.values(), Api)):
        listener = actor.listeners[(number + number // len(Api)) % len(actor.listeners)]
        cells += [(actor, api, listener, topic) for topic in (NAMES["topic"], OTHER)]
    taken = {(api, listener) for _, api, listener, _ in cells}
    assert len(taken) == len(Api) * len(LISTENERS), "each API meets each listener"
    check(guarded, cells)


@pytest.mark.slow
def test_who_may_ask_what_on_every_listener(guarded: Guarded) -> None:
    cells = [
        (actor, api, listener, topic)
        for actor in guarded.actors.values()
        for listener in actor.listeners
        for api in Api
        for topic in (NAMES["topic"], OTHER)
    ]
    check(guarded, cells)
    with guarded.enter(guarded.actors["admin"], PLAIN) as wire:
        assert is_led(wire, OTHER)


@pytest.mark.parametrize("api", SEVERAL)
def test_a_request_of_which_one_topic_is_forbidden_is_refused_whole(
    guarded: Guarded, api: Api
) -> None:
    [(operation, _), *_] = ROWS[api].needs
    actor, topic = guarded.actors[f"only-{operation}"], NAMES["topic"]
    with guarded.enter(guarded.actors["admin"], PLAIN) as admin:
        before = end_of(admin, topic)
        for topics in ([topic, OTHER], [OTHER, topic]):
            with guarded.enter(actor, PLAIN) as wire:
                message, payload = ROWS[api].make(topics)
                with pytest.raises(NotAuthorizedError, match=f"the topic {OTHER}"):
                    wire.call(api, message, APIS[api].response, payload)
        assert end_of(admin, topic) == before


def end_of(wire: Wire, topic: str) -> int:
    found = wire.call(Api.METADATA, MetadataRequest([topic], ends=True), MetadataResponse)
    [partition] = found.topics[0].partitions
    assert partition.ends is not None
    return partition.ends.log_end_offset


def test_metadata_of_several_topics_hides_those_that_are_forbidden(guarded: Guarded) -> None:
    with guarded.enter(guarded.actors["only-describe"], PLAIN) as wire:
        for asked in (None, [NAMES["topic"], OTHER, "nowhere"]):
            found = wire.call(Api.METADATA, MetadataRequest(asked), MetadataResponse)
            assert [each.name for each in found.topics] == [NAMES["topic"]]


@pytest.mark.parametrize(
    "api",
    [api for api, row in ROWS.items() if any(kind == "topic" for _, kind in row.needs)],
)
def test_forbidden_topics_look_like_none(guarded: Guarded, api: Api) -> None:
    missing = "o" * len(OTHER)
    answers = []
    with guarded.enter(guarded.actors["none"], PLAIN) as wire:
        for topic in (OTHER, missing):
            message, payload = ROWS[api].make([topic])
            wire.send(api, message, payload)
            frame = wire.receive()
            assert not frame.payload
            answers.append(bytes(frame.header).replace(topic.encode(), b"TOPIC"))
    assert answers[0] == answers[1]
    if api is not Api.METADATA:
        with pytest.raises(NotAuthorizedError):
            decode_response(api, answers[0])


def test_an_append_that_wants_no_answer_and_is_refused_ends_its_connection(
    guarded: Guarded,
) -> None:
    data = record_batch()
    with guarded.enter(guarded.actors["none"], PLAIN) as wire:
        wire.send(Api.APPEND, append_request(OTHER, 0, data, acks="none"), data)
        assert wire.is_ended()


def test_no_descriptor_is_passed_to_who_may_not_read(guarded: Guarded) -> None:
    topic = NAMES["topic"]
    with guarded.enter(guarded.actors["only-write"], UNIX) as wire:
        wanted = fetch_request(topic, 0, 0)
        wanted.max_bytes_by_descriptor = 1 << 20
        with pytest.raises(NotAuthorizedError, match=f"may not read the topic {topic}"):
            wire.call(Api.FETCH, wanted, APIS[Api.FETCH].response)
