"""Atomic writes through the client, against real brokers and a real ZooKeeper."""

from __future__ import annotations

import secrets
import uuid
from collections import Counter
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from spark_logbus.client import (
    Admin,
    AtomicWrites,
    Cluster,
    Commit,
    Producer,
    RangeReader,
    Repetition,
    StagedTask,
    WriteIdentity,
    WriteInputs,
)
from spark_logbus.coordination.paths import PENDING_WRITES, WRITERS, promise
from spark_logbus.coordination.payloads import encode
from spark_logbus.coordination.writes.decisions import DecidedWrite, TopicRecords, WriterState
from spark_logbus.coordination.writes.writers import WriterRegistry
from spark_logbus.errors import (
    InvalidRequestError,
    LogbusError,
    StagedDataLostError,
    WriteFencedError,
    WriteMismatchError,
    WriteNotDecidedError,
    WriteNotPreparedError,
)
from spark_logbus.local.cluster import EmbeddedCluster
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.protocol import (
    Api,
    DecideRequest,
    DecideResponse,
    Decision,
    DiscardRequest,
    DiscardResponse,
    Message,
    PrepareRequest,
    PublishRequest,
    ShareResponse,
    TopicShares,
    WriteShare,
)
from spark_logbus.record.stage_id import WRITE_BITS, stage_id
from spark_logbus.retry import Deadline
from tests.helpers import wait_until
from tests.servers.staged_files import staged_bytes, staged_writes
from tests.servers.zookeeper import put, session

M = TypeVar("M", bound=Message)


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    Admin(cluster).create_topic(name, partitions=2)
    return name


@pytest.fixture
def writes(cluster: Cluster) -> AtomicWrites:
    return AtomicWrites(cluster)


def stage(
    cluster: Cluster,
    topic: str,
    write: int,
    attempt: int,
    values: list[str],
    identity: WriteIdentity | None = None,
) -> StagedTask:
    """Stage the values, in turn, in all partitions."""
    records: Counter[TopicPartition] = Counter()
    staged = stage_id(write, attempt)
    with Producer(cluster, stage_id=staged, stage_for=identity) as producer:
        futures = [
            producer.send(topic, value.encode(), partition=number % 2)
            for number, value in enumerate(values)
        ]
        for future in futures:
            placed = future.result(60)
            records[TopicPartition(placed.topic, placed.partition)] += 1
    return StagedTask(attempt, records, 1000)


def read(cluster: Cluster, topic: str) -> list[list[str]]:
    """The values in each partition."""
    found = []
    for number, ends in Admin(cluster).describe([topic])[topic].partitions.items():
        assert ends.ends is not None
        at = TopicPartition(topic, number)
        values: list[str] = []
        reader = RangeReader(cluster, OffsetRange(at, 0, ends.ends.high_watermark))
        for batch in reader:
            column = batch.arrow_batch.column("value")
            values.extend(value.decode() for value in column.to_pylist())
        found.append(values)
    return found


def write_number() -> int:
    return secrets.randbits(WRITE_BITS)


def test_a_write(cluster: Cluster, topic: str, writes: AtomicWrites) -> None:
    write = write_number()
    tasks = [
        stage(cluster, topic, write, 7, ["c", "d"]),
        stage(cluster, topic, write, 3, ["a", "b"]),
    ]
    stage(cluster, topic, write, 9, ["x", "x"])
    assert read(cluster, topic) == [[], []]
    outcome = writes.commit(WriteIdentity(writer="me", version=1), write, tasks)
    assert (outcome.committed, outcome.visible) == (True, True)
    assert read(cluster, topic) == [["c", "a"], ["d", "b"]]


def test_large_parts_of_a_write_are_published_side_by_side(cluster: Cluster) -> None:
    """The brokers publish all parts but one that is lost, and answer in the order of the
    questions."""
    topic, write = f"t-{uuid.uuid4().hex[:8]}", write_number()
    Admin(cluster).create_topic(topic, partitions=12)
    on_first = [
        at.partition
        for at in (TopicPartition(topic, number) for number in range(12))
        if cluster.leader(at, cluster.retry_deadline()).broker_id == 1
    ]
    assert len(on_first) == 6
    values = {number: [f"{number}-{n}" * 100_000 for n in range(10)] for number in on_first}
    with Producer(cluster, stage_id=stage_id(write, 0)) as producer:
        for number in on_first:
            rows = pa.table({"value": pa.array(values[number], pa.binary())})
            producer.send_arrow(topic, rows, partition=number)
    lost = on_first[2]
    records = {number: 11 if number == lost else 10 for number in on_first}
    topic_id = cluster.topic(topic, cluster.retry_deadline()).topic_id
    shares = [WriteShare(topic, topic_id, number, count) for number, count in records.items()]
    [address] = [broker for broker in cluster.brokers if broker.broker_id == 1]
    prepared = cluster.call(
        address, Api.PREPARE, PrepareRequest(write, "0", shares), ShareResponse,
        deadline=cluster.retry_deadline(),
    )  # fmt: skip
    decide(
        cluster, writer=f"me {write}", write=write, topics={topic: TopicShares(topic_id, records)},
        promises={1: prepared.promise},
    )  # fmt: skip
    response = cluster.call(
        address, Api.PUBLISH, PublishRequest(write, "0", shares), ShareResponse,
        deadline=cluster.retry_deadline(),
    )  # fmt: skip
    assert [result.partition for result in response.results] == on_first
    failures = {result.partition: result.error for result in response.results if result.error}
    assert failures.keys() == {lost}
    assert isinstance(failures[lost].to_exception(), StagedDataLostError)
    expected = {**values, lost: []}
    assert read(cluster, topic) == [expected.get(number, []) for number in range(12)]


def test_attempts_that_do_not_count_leave_nothing(
    brokers: EmbeddedCluster, cluster: Cluster, topic: str, writes: AtomicWrites
) -> None:
    """Brokers drop them, also a broker that has no part of the write, and refuse late ones."""
    write = write_number()
    task = stage(cluster, topic, write, 0, ["a"])
    assert task.records.keys() == {TopicPartition(topic, 0)}
    stage(cluster, topic, write, 1, ["x", "y"])
    assert staged_bytes(brokers, topic)
    assert writes.commit(WriteIdentity(writer=uuid.uuid4().hex, version=1), write, [task]).visible
    assert not staged_bytes(brokers, topic)
    for partition in (0, 1):
        with Producer(cluster, stage_id=stage_id(write, 2)) as late:
            failure = late.send(topic, b"z", partition=partition).exception(30)
            assert isinstance(failure, WriteFencedError)
    assert not staged_bytes(brokers, topic)
    assert read(cluster, topic) == [["a"], []]


def committed(
    cluster: Cluster, topic: str, writes: AtomicWrites, identity: WriteIdentity, values: list[str]
) -> Commit:
    write = write_number()
    return writes.commit(identity, write, [stage(cluster, topic, write, 0, values)])


def test_a_version_is_committed_once(cluster: Cluster, topic: str) -> None:
    writer = uuid.uuid4().hex
    for version, values in [(1, ["a", "b"]), (1, ["x", "y"]), (2, ["c"]), (1, ["x", "y"])]:
        identity = WriteIdentity(writer=writer, version=version)
        # Each from a process of its own, which remembers nothing.
        outcome = committed(cluster, topic, AtomicWrites(cluster), identity, values)
        assert outcome.committed is ("x" not in values)
    assert read(cluster, topic) == [["a", "c"], ["b"]]


def test_a_version_that_comes_again_as_another_write_is_refused(
    brokers: EmbeddedCluster, cluster: Cluster, topic: str
) -> None:
    writer = uuid.uuid4().hex
    for version in (1, 3):
        identity = WriteIdentity(writer=writer, version=version)
        committed(cluster, topic, AtomicWrites(cluster), identity, ["a", "b", "c"])
    for version, values in [(3, ["a", "b"]), (3, ["a"] * 6), (1, ["a"]), (0, ["a"]), (2, ["a"])]:
        identity, write = WriteIdentity(writer=writer, version=version), write_number()
        tasks, writes = [stage(cluster, topic, write, 0, values)], AtomicWrites(cluster)
        with pytest.raises(WriteMismatchError, match=f"Version {version} .*with {len(values)} rec"):
            writes.commit(identity, write, tasks)
        writes.abort(identity, write)
    for version in (0, 1, 3):
        with pytest.raises(WriteMismatchError, match="with 0 records"):
            writes.check_empty(WriteIdentity(writer=writer, version=version), write_number())
    writes.check_empty(WriteIdentity(writer=writer, version=2), write_number())
    assert not staged_bytes(brokers, topic)
    assert read(cluster, topic) == [["a", "c", "a", "c"], ["b", "b"]]


def test_a_version_is_dropped_unseen_if_the_writer_says_so(cluster: Cluster, topic: str) -> None:
    identity = WriteIdentity(writer=uuid.uuid4().hex, version=1)
    committed(cluster, topic, AtomicWrites(cluster), identity, ["a"])
    for repetition in (Repetition.DROPPED, None):
        write = write_number()
        tasks = [stage(cluster, topic, write, 0, ["x", "y"])]
        outcome = AtomicWrites(cluster).commit(identity, write, tasks, repetition=repetition)
        assert not outcome.committed
    assert read(cluster, topic) == [["a"], []]


def test_a_write_of_other_inputs_is_another_write(cluster: Cluster, topic: str) -> None:
    identity = WriteIdentity(writer=uuid.uuid4().hex, version=1)

    def commit(end: int | None) -> bool:
        inputs = None if end is None else WriteInputs.of(f"end {end}", f"start 0 end {end}")
        write = write_number()
        tasks = [stage(cluster, topic, write, 0, ["a"])]
        return AtomicWrites(cluster).commit(identity, write, tasks, inputs=inputs).committed

    assert commit(200)
    assert not commit(200)
    assert not commit(None)
    with pytest.raises(WriteMismatchError, match=r"up to end 500: .* is 1, .* up to end 200\."):
        commit(500)
    assert read(cluster, topic) == [["a"], []]


def test_writers_do_not_meet(cluster: Cluster, topic: str, writes: AtomicWrites) -> None:
    for number in range(3):
        identity = WriteIdentity(writer=f"{uuid.uuid4()} ../€{number}", version=1)
        assert committed(cluster, topic, writes, identity, [str(number)]).committed
    assert read(cluster, topic) == [["0", "1", "2"], []]


def test_a_run_that_was_succeeded_is_fenced(cluster: Cluster, topic: str) -> None:
    writer = uuid.uuid4().hex

    def commit(run: str, version: int) -> bool:
        identity = WriteIdentity(writer=writer, version=version, run=run)
        return committed(cluster, topic, AtomicWrites(cluster), identity, [run]).committed

    assert commit("a", 1)
    assert commit("b", 2)
    assert not commit("a", 2)  # nothing to fence: it is committed
    with pytest.raises(WriteFencedError, match="run b"):
        commit("a", 3)
    assert commit("b", 3)
    assert read(cluster, topic) == [["a", "b", "b"], []]


def test_the_brokers_publish_while_the_next_write_is_about_to(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers have published and forgotten what the next write was told to publish first."""
    identity = WriteIdentity(writer=uuid.uuid4().hex, version=1)
    publish_all = AtomicWrites._publish_all
    with monkeypatch.context() as patch:
        patch.setattr(AtomicWrites, "_publish_all", _die)
        with pytest.raises(ZeroDivisionError):
            committed(cluster, topic, AtomicWrites(cluster), identity, ["a", "b"])

    def late(self: AtomicWrites, decision: Decision, deadline: Deadline, writer: str) -> None:
        """Publishes again and again until the brokers have forgotten the write, then once more."""

        def forgotten() -> bool:
            try:
                publish_all(self, decision, deadline, writer)
            except StagedDataLostError:
                return True
            return False

        if decision.version == 1:
            wait_until(forgotten, message="the brokers to publish, and to forget it")
        publish_all(self, decision, deadline, writer)

    monkeypatch.setattr(AtomicWrites, "_publish_all", late)
    identity = WriteIdentity(writer=identity.writer, version=2)
    assert committed(cluster, topic, AtomicWrites(cluster), identity, ["c"]).committed
    assert read(cluster, topic) == [["a", "c"], ["b"]]


def _die(*_: object) -> None:
    raise ZeroDivisionError


def test_an_aborted_write_cannot_be_committed(
    cluster: Cluster, topic: str, writes: AtomicWrites
) -> None:
    identity = WriteIdentity(writer=uuid.uuid4().hex, version=1)
    write = write_number()
    tasks = [stage(cluster, topic, write, 0, ["a", "b"])]
    assert writes.abort(identity, write)
    with pytest.raises(WriteFencedError, match="aborted"):
        writes.commit(identity, write, tasks)
    with pytest.raises(WriteFencedError, match="or aborted"):
        stage(cluster, topic, write, 1, ["a", "b"])
    assert committed(cluster, topic, writes, identity, ["c"]).committed
    assert read(cluster, topic) == [["c"], []]


def test_a_committed_write_is_not_aborted(
    cluster: Cluster, topic: str, writes: AtomicWrites
) -> None:
    identity = WriteIdentity(writer=uuid.uuid4().hex, version=1, once=True)
    write = write_number()
    writes.commit(identity, write, [stage(cluster, topic, write, 0, ["a"])])
    assert not writes.abort(identity, write)
    assert read(cluster, topic) == [["a"], []]


def test_an_empty_write(cluster: Cluster, topic: str, writes: AtomicWrites) -> None:
    identity = WriteIdentity(writer=uuid.uuid4().hex, version=1)
    assert writes.commit(identity, write_number(), []).committed
    assert not writes.commit(identity, write_number(), []).committed
    with pytest.raises(WriteMismatchError, match="with 0 records"):
        committed(cluster, topic, writes, identity, ["x"])
    assert read(cluster, topic) == [[], []]


def decide(cluster: Cluster, **changes: Any) -> DecideResponse:
    """Send a broker a decision about a write of one record, but for the changes."""
    asked: dict[str, Any] = {
        "writer": f"hostile {uuid.uuid4()}", "run": "", "version": 1, "write": write_number(),
        "attempts": "0", "topics": {},
    } | changes  # fmt: skip
    decision = Decision(asked["version"], asked["write"], asked["attempts"], asked["topics"])
    promises = asked.get("promises", {})
    request = DecideRequest(asked["writer"], asked["run"], decision, promises=promises)
    return cluster.ask_any(Api.DECIDE, request, DecideResponse, deadline=cluster.retry_deadline())


def test_what_no_broker_could_follow_up_is_not_decided(
    brokers: EmbeddedCluster, cluster: Cluster, topic: str
) -> None:
    topic_id = cluster.topic(topic, cluster.retry_deadline()).topic_id
    good = {topic: TopicShares(topic_id, {0: 1})}
    for changes in (
        {"topics": {"../../escape": TopicShares(topic_id, {0: 1})}},
        {"topics": {"": TopicShares(topic_id, {0: 1})}},
        {"topics": {"unknown": TopicShares(topic_id, {0: 1})}},
        {"topics": {topic: TopicShares("f" * 32, {0: 1})}},
        {"topics": {topic: TopicShares(topic_id, {2: 1})}},
        {"topics": {topic: TopicShares(topic_id, {-1: 1})}},
        {"topics": {topic: TopicShares(topic_id, {0: 0})}},
        {"topics": {topic: TopicShares(topic_id, {0: 1 << 63})}},
        {"topics": {topic: TopicShares(topic_id, {})}},
        {"topics": good, "attempts": "0-1048574"},
        {"topics": good, "attempts": "0,0"},
        {"topics": good, "version": -1},
        {"topics": good, "version": 1 << 63},
        {"topics": good, "write": 1 << 43},
        {"topics": good, "writer": ""},
        {"topics": good, "writer": "w" * 501},
        {"topics": good, "run": "r" * 501},
    ):
        with pytest.raises(InvalidRequestError):
            decide(cluster, **changes)
    with session(brokers.zookeeper) as connected:
        found = WriterRegistry(connected).pending()
        assert not [writer for writer in found.states if writer.startswith("hostile")]
        assert not found.unusable


def test_nodes_that_nobody_can_follow_up_cost_no_other_writer_its_write(
    brokers: EmbeddedCluster, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier release has decided them; or somebody has written them."""
    shares = {"escape": ("../../escape", "0"), "empty": ("", "0"), "million": (topic, "0-1048575x")}
    nodes = {"garbage": b"no JSON", "%zz": b"{}", "x" * 600: b"{}"}
    for name, (named, attempts) in shares.items():
        last = DecidedWrite(1, 5, attempts, {named: TopicRecords("f" * 32, {0: 1})})
        nodes[name] = encode(WriterState(last=last, changed_us=1))
    for name, data in nodes.items():
        put(brokers.zookeeper, f"{WRITERS}/{name}", data)
        put(brokers.zookeeper, f"{PENDING_WRITES}/{name}", b"")
    try:
        monkeypatch.setattr(AtomicWrites, "_publish_all", _die)
        for number in range(2):
            identity = WriteIdentity(writer=f"{number} {uuid.uuid4()}", version=1)
            with pytest.raises(ZeroDivisionError):
                committed(cluster, topic, AtomicWrites(cluster), identity, ["a", "b"])
        wait_until(
            lambda: read(cluster, topic) == [["a", "a"], ["b", "b"]],
            message="the brokers to publish what was decided",
        )
    finally:
        with session(brokers.zookeeper) as by_hand:
            for name in nodes:
                for parent in (WRITERS, PENDING_WRITES):
                    by_hand._client.delete(f"{by_hand.connect.chroot}{parent}/{name}")


# -- what was decided, and by what ------------------------------------------------------------


def shares_of(cluster: Cluster, task: StagedTask) -> list[WriteShare]:
    deadline = cluster.retry_deadline()
    return [
        WriteShare(at.topic, cluster.topic(at.topic, deadline).topic_id, at.partition, records)
        for at, records in task.records.items()
    ]


def ask_all(cluster: Cluster, api: Api, message: Message, kind: type[M]) -> list[M | LogbusError]:
    """The answers of all brokers."""
    found: list[M | LogbusError] = []
    for address in cluster.brokers:
        try:
            deadline = cluster.retry_deadline()
            found.append(cluster.call(address, api, message, kind, deadline=deadline))
        except LogbusError as error:
            found.append(error)
    return found


@pytest.mark.parametrize("writer", ["", "me", "somebody"])
def test_what_nobody_has_decided_is_not_published(
    cluster: Cluster, topic: str, writes: AtomicWrites, writer: str
) -> None:
    write = write_number()
    task = stage(cluster, topic, write, 0, ["a", "b"])
    me = WriteIdentity(writer=f"me {topic}", version=1)
    writes._prepare(me, writes._decision(me, write, [task]))
    if writer == "somebody":  # who has decided something else
        committed(cluster, topic, writes, WriteIdentity(writer="somebody", version=5), ["x"])
    named = me.writer if writer == "me" else writer
    request = PublishRequest(write, "0", shares_of(cluster, task), named)
    for answer in ask_all(cluster, Api.PUBLISH, request, ShareResponse):
        assert isinstance(answer, WriteNotDecidedError)
    assert all("a" not in values and "b" not in values for values in read(cluster, topic))
    assert writes.commit(me, write, [task]).visible
    assert [values[-1] for values in read(cluster, topic)] == ["a", "b"]


@pytest.mark.parametrize("attempts", ["0", "0-1"])
def test_only_what_was_decided_is_published(
    cluster: Cluster, topic: str, writes: AtomicWrites, attempts: str
) -> None:
    write = write_number()
    task = stage(cluster, topic, write, 0, ["a"])
    stage(cluster, topic, write, 1, ["x", "y"])
    me = WriteIdentity(writer=f"me {topic}", version=1)
    decision = writes._decision(me, write, [task])
    assert writes._decide(me, decision, writes._prepare(me, decision), None) is None
    topic_id = cluster.topic(topic, cluster.retry_deadline()).topic_id
    for partition in (0, 1):
        request = PublishRequest(
            write, attempts, [WriteShare(topic, topic_id, partition, 2)], me.writer
        )
        for answer in ask_all(cluster, Api.PUBLISH, request, ShareResponse):
            assert isinstance(answer, LogbusError) or answer.results[0].error is not None
    assert writes._publish(me.writer, decision, required=True)
    assert read(cluster, topic) == [["a"], []]


def test_a_decision_that_comes_again_as_another_changes_nothing(
    cluster: Cluster, topic: str, writes: AtomicWrites
) -> None:
    """A client that has read the write's number in ZooKeeper does it."""
    write = write_number()
    task = stage(cluster, topic, write, 0, ["a", "b"])
    forged = stage(cluster, topic, write, 1, ["x", "y", "z"])
    me = WriteIdentity(writer=f"me {topic}", version=1)
    decision = writes._decision(me, write, [task])
    assert writes._decide(me, decision, writes._prepare(me, decision), None) is None
    other = DecideRequest(me.writer, "", writes._decision(me, write, [forged]))
    request = PublishRequest(write, "1", shares_of(cluster, forged), me.writer)
    answers = [
        *ask_all(cluster, Api.DECIDE, other, DecideResponse),
        *ask_all(cluster, Api.PUBLISH, request, ShareResponse),
    ]
    assert [type(answer) for answer in answers] == [InvalidRequestError] * 4
    assert writes._publish(me.writer, decision, required=True)
    assert read(cluster, topic) == [["a"], ["b"]]


def test_what_is_decided_is_not_dropped(cluster: Cluster, topic: str, writes: AtomicWrites) -> None:
    write = write_number()
    task = stage(cluster, topic, write, 0, ["a", "b"])
    stage(cluster, topic, write, 1, ["x"])
    me = WriteIdentity(writer=f"me {topic}", version=1)
    decision = writes._decision(me, write, [task])
    assert writes._decide(me, decision, writes._prepare(me, decision), None) is None
    for attempt in (0, None):
        request = DiscardRequest(write, attempt)
        for answer in ask_all(cluster, Api.DISCARD, request, DiscardResponse):
            assert isinstance(answer, InvalidRequestError)
            assert "is decided" in str(answer)
    for answer in ask_all(cluster, Api.DISCARD, DiscardRequest(write, 1), DiscardResponse):
        assert isinstance(answer, DiscardResponse)  # one that does not count
    assert writes._publish(me.writer, decision, required=True)
    assert read(cluster, topic) == [["a"], ["b"]]


def test_what_was_dropped_since_it_was_prepared_is_not_decided(
    cluster: Cluster, topic: str, writes: AtomicWrites
) -> None:
    """A leader of the write has lost it, for whatever reason; the other has it still."""
    write = write_number()
    task = stage(cluster, topic, write, 0, ["a", "b"])
    me = WriteIdentity(writer=f"me {topic}", version=1)
    decision = writes._decision(me, write, [task])
    promises = writes._prepare(me, decision)
    assert len(promises) == 2
    address = cluster.leader(TopicPartition(topic, 1), cluster.retry_deadline())
    cluster.call(
        address, Api.DISCARD, DiscardRequest(write), DiscardResponse,
        deadline=cluster.retry_deadline(),
    )  # fmt: skip
    for stale in (promises, {}, dict.fromkeys(promises, ""), {99: "x"}):
        with pytest.raises(WriteNotPreparedError):
            decide(cluster, writer=me.writer, write=write, topics=decision.topics, promises=stale)
    with pytest.raises(StagedDataLostError):
        writes._decide(me, decision, promises, None)
    assert read(cluster, topic) == [[], []]
    assert writes.find_committed(me) is None


def test_a_write_is_prepared_again_where_a_promise_was_let_go(
    brokers: EmbeddedCluster, cluster: Cluster, topic: str, writes: AtomicWrites
) -> None:
    """Another write of the broker's was dropped; or its node in ZooKeeper is not as it was."""
    me = WriteIdentity(writer=f"me {topic}", version=1)
    other, write = write_number(), write_number()
    theirs = stage(cluster, topic, other, 0, ["x", "y"])
    writes._prepare(me, writes._decision(me, other, [theirs]))
    task = stage(cluster, topic, write, 0, ["a", "b"])
    decision = writes._decision(me, write, [task])
    promises = writes._prepare(me, decision)
    writes.discard(other)
    assert writes._decide(me, decision, promises, None) is None
    assert writes._publish(me.writer, decision, required=True)
    with session(brokers.zookeeper) as by_hand:
        for broker in cluster.brokers:
            path = f"{by_hand.connect.chroot}{promise(broker.broker_id)}"
            by_hand._client.delete(path)
    assert committed(cluster, topic, writes, replace(me, version=2), ["c", "d"]).visible
    with session(brokers.zookeeper) as by_hand:
        for broker in cluster.brokers:
            by_hand._client.set(f"{by_hand.connect.chroot}{promise(broker.broker_id)}", b"?")
    assert committed(cluster, topic, writes, replace(me, version=3), ["e", "f"]).visible
    assert read(cluster, topic) == [["a", "c", "e"], ["b", "d", "f"]]


def test_a_newer_run_drops_what_runs_that_died_have_left(
    brokers: EmbeddedCluster, cluster: Cluster, topic: str, writes: AtomicWrites
) -> None:
    """Brokers drop all of it but what one run has decided, which they publish."""

    def run(name: str) -> tuple[WriteIdentity, int, StagedTask]:
        identity = WriteIdentity(writer=f"query:{topic}", version=1, run=name)
        write = write_number()
        return identity, write, stage(cluster, topic, write, 0, [name, name], identity)

    for number in range(3):
        run(f"dead {number}")
    identity, write, task = run("decided")
    decision = writes._decision(identity, write, [task])
    assert writes._decide(identity, decision, writes._prepare(identity, decision), None) is None
    identity, write, task = run("last")
    wait_until(
        lambda: read(cluster, topic) == [["decided"], ["decided"]],
        message="what was decided to be published",
    )
    wait_until(
        lambda: staged_writes(brokers, topic) == {write},
        message="what the other runs have left to be dropped",
    )
    assert writes.commit(replace(identity, version=2), write, [task]).visible
    assert read(cluster, topic) == [["decided", "last"]] * 2
