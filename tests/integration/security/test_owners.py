"""Atomic writes belong to the principal that began them, at brokers that ask who connects."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from spark_logbus.broker import Broker, SecurityConfig
from spark_logbus.client import (
    Admin,
    AtomicWrites,
    Bootstrap,
    ClientConfig,
    Cluster,
    Producer,
    RangeReader,
    StagedTask,
    WriteIdentity,
)
from spark_logbus.coordination.security.access_rules import RuleRegistry
from spark_logbus.coordination.security.users import UserRegistry
from spark_logbus.coordination.writes.writers import WriterRegistry
from spark_logbus.errors import (
    LogbusError,
    NotAuthorizedError,
    StagedDataLostError,
    WriteFencedError,
)
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.protocol import (
    Api,
    DecideRequest,
    DecideResponse,
    Decision,
    DiscardRequest,
    DiscardResponse,
    PublishRequest,
    ShareResponse,
    WriteShare,
)
from spark_logbus.record.stage_id import WRITE_BITS, stage_id
from spark_logbus.security.acls import Rule
from spark_logbus.security.logins import PasswordLogin
from spark_logbus.zookeeper import Session
from tests.helpers import wait_until
from tests.servers.broker import broker_here

USERS = ("anna", "bert", "admin")
SECURED = SecurityConfig(authenticate=True, authorize=True, super_principals=["user:admin"])
T0, OTHER = TopicPartition("t", 0), TopicPartition("other", 0)
HERS = WriteIdentity(writer="query:anna's", version=1)
HIS = WriteIdentity(writer="query:bert's", version=1)


class Guarded:
    """Brokers at which anna and bert may write all topics, as all writers."""

    def __init__(self, directory: Path, zookeeper: str, stack: ExitStack) -> None:
        self.directory = directory
        self.zookeeper = zookeeper
        self.session = stack.enter_context(Session(zookeeper, client_name="test"))
        self.rules = RuleRegistry(self.session)
        self.running: dict[int, tuple[Broker, ExitStack]] = {}
        self._stack = stack
        self._clusters: dict[str, Cluster] = {}
        users = UserRegistry(self.session)
        for each in USERS:
            users.add(each, f"{each}'s password", now_us=1)
        self.rules.add(
            [
                Rule(kind, "*", f"user:{user}", operation)
                for user in ("anna", "bert")
                for kind, operation in (("topic", "write"), ("topic", "read"), ("writer", "write"))
            ]
        )

    def start(self, broker_id: int, security: SecurityConfig = SECURED) -> Broker:
        stack = ExitStack()
        directory = self.directory / str(broker_id)
        broker = stack.enter_context(
            broker_here(directory, self.zookeeper, broker_id=broker_id, security=security)
        )
        self.running[broker_id] = broker, stack
        return broker

    def stop(self, broker_id: int) -> None:
        self.running.pop(broker_id)[1].close()

    def restart(self, broker_id: int) -> None:
        self.stop(broker_id)
        self.start(broker_id)
        self._clusters.clear()  # it may have got another port
        wait_until(lambda: self.running[broker_id][0]._replica_manager.find(T0))

    def stop_all(self) -> None:
        for each in [*self.running]:
            self.stop(each)

    def cluster(self, who: str) -> Cluster:
        """The connections of a user; ``anna's token``: of a task of hers. Nobody's, without one."""
        if who not in self._clusters:
            self._clusters[who] = self._stack.enter_context(self._connect(who))
        return self._clusters[who]

    def _connect(self, who: str) -> Cluster:
        config = ClientConfig(client_id="test", local_sockets=False, retry_deadline_ms=10_000)
        if who == "anna's token":
            return Cluster.connect(self.cluster("anna").for_tasks(["t"], "write"), config)
        ports = [broker.address for broker, _ in self.running.values()]
        bootstrap = Bootstrap.at([(each.host, each.port) for each in ports])
        if who in USERS:
            login = PasswordLogin(user=who, password=f"{who}'s password")
            return Cluster.connect(
                bootstrap,
                ClientConfig(
                    client_id="test", login=login, local_sockets=False, retry_deadline_ms=10_000
                ),
            )
        return Cluster.connect(bootstrap, config)

    def ask(self, who: str, api: Api, request: Any, kind: Any) -> Any:
        """The answer of the leader of t-0, or the error."""
        cluster = self.cluster(who)
        deadline = cluster.retry_deadline()
        try:
            return cluster.call(cluster.leader(T0, deadline), api, request, kind, deadline=deadline)
        except LogbusError as error:
            return error

    def create(self, *topics: str, replication: int = 1) -> None:
        for name in topics:
            Admin(self.cluster("admin")).create_topic(name, partitions=1, replicas=replication)
        wait_until(
            lambda: {each.name for each in Admin(self.cluster("bert")).topics()} >= {*topics}
        )

    def values(self, where: TopicPartition = T0) -> list[bytes]:
        cluster = self.cluster("anna")
        ends = Admin(cluster).describe([where.topic])[where.topic].partitions[0].ends
        assert ends is not None
        wanted = OffsetRange(where, 0, ends.high_watermark)
        found: list[bytes] = []
        for each in RangeReader(cluster, wanted):
            found += each.arrow_batch.column("value").to_pylist()
        return found


@pytest.fixture
def guarded(tmp_path: Path, chroot: str) -> Iterator[Guarded]:
    with ExitStack() as stack:
        brokers = Guarded(tmp_path, chroot, stack)
        stack.callback(brokers.stop_all)
        yield brokers


@pytest.fixture
def one(guarded: Guarded) -> Guarded:
    guarded.start(1)
    guarded.create("t", "other")
    return guarded


def stage(
    cluster: Cluster,
    write: int,
    attempt: int,
    *values: bytes,
    by: WriteIdentity = HERS,
    where: TopicPartition = T0,
) -> StagedTask:
    with Producer(cluster, stage_id=stage_id(write, attempt), stage_for=by) as producer:
        for future in [producer.send(where.topic, each, partition=0) for each in values]:
            future.result(60)
    return StagedTask(attempt, {where: len(values)}, 1_000)


def number() -> int:
    return secrets.randbits(WRITE_BITS)


def discard(guarded: Guarded, who: str, write: int, attempt: int | None = None) -> object:
    request = DiscardRequest(write, attempt, HERS.writer)
    return guarded.ask(who, Api.DISCARD, request, DiscardResponse)


def decided(guarded: Guarded, write: int, task: StagedTask) -> Decision:
    """Anna's decision, that is not published."""
    writes = AtomicWrites(guarded.cluster("anna"))
    decision = writes._decision(HERS, write, [task])
    assert writes._decide(HERS, decision, writes._prepare(HERS, decision), None) is None
    return decision


def test_nobody_stages_prepares_or_discards_what_another_has_begun(one: Guarded) -> None:
    write = number()
    anna, bert = AtomicWrites(one.cluster("anna")), AtomicWrites(one.cluster("bert"))
    task = stage(one.cluster("anna"), write, 0, b"hers")
    for attempt in (0, 1):  # one of hers, and one of his own
        with pytest.raises(NotAuthorizedError, match="was begun by another"):
            stage(one.cluster("bert"), write, attempt, b"his")
    for identity in (HERS, HIS):
        with pytest.raises(NotAuthorizedError, match="belongs to another principal"):
            bert._prepare(identity, bert._decision(identity, write, [task]))
    for each in (0, None):
        refused = discard(one, "bert", write, each)
        assert isinstance(refused, NotAuthorizedError)
        assert "stays" in str(refused)
    more = stage(one.cluster("anna"), write, 2, b"more")  # it is not over, whoever says so
    assert anna.commit(HERS, write, [task, more]).visible
    assert one.values() == [b"hers", b"more"]


def test_a_discard_before_a_write_begins_closes_it_for_nobody_else(one: Guarded) -> None:
    write = number()
    assert isinstance(discard(one, "bert", write), DiscardResponse)
    task = stage(one.cluster("anna"), write, 0, b"hers")
    assert AtomicWrites(one.cluster("anna")).commit(HERS, write, [task]).visible
    write = number()
    assert isinstance(discard(one, "anna", write), DiscardResponse)
    with pytest.raises(WriteFencedError, match="is over"):
        stage(one.cluster("anna"), write, 0, b"late")


def test_a_later_run_of_another_principal_drops_nothing(one: Guarded) -> None:
    hers, his = number(), number()
    first, second = (WriteIdentity(writer=HERS.writer, version=1, run=each) for each in "ab")
    task = stage(one.cluster("anna"), hers, 0, b"hers", by=first)
    stage(one.cluster("bert"), his, 0, b"his", by=second)
    one.running[1][0]._publisher.look()  # which drops what is succeeded
    assert AtomicWrites(one.cluster("anna")).commit(first, hers, [task]).visible
    assert one.values() == [b"hers"]


def test_a_token_acts_as_its_owner_for_its_topics(one: Guarded) -> None:
    write, elsewhere = number(), number()
    tasks = one.cluster("anna's token")
    task = stage(tasks, write, 0, b"hers")
    stage(tasks, write, 1, b"dropped")
    assert isinstance(discard(one, "anna's token", write, 1), DiscardResponse)
    stage(one.cluster("anna"), elsewhere, 0, b"x", where=OTHER)
    assert isinstance(discard(one, "anna's token", elsewhere), NotAuthorizedError)
    with pytest.raises(NotAuthorizedError, match="write the writer"):
        AtomicWrites(tasks).commit(HERS, write, [task])
    assert AtomicWrites(one.cluster("anna")).commit(HERS, write, [task]).visible
    assert one.values() == [b"hers"]


def test_a_super_principal_discards_and_aborts_for_others(one: Guarded) -> None:
    write, another = number(), number()
    admin, anna = AtomicWrites(one.cluster("admin")), AtomicWrites(one.cluster("anna"))
    task = stage(one.cluster("anna"), write, 0, b"hers")
    assert isinstance(discard(one, "admin", write), DiscardResponse)
    with pytest.raises(StagedDataLostError):
        anna.commit(HERS, write, [task])
    task = stage(one.cluster("anna"), another, 0, b"hers")
    assert admin.abort(HERS, another)
    with pytest.raises((WriteFencedError, StagedDataLostError)):
        anna.commit(HERS, another, [task])
    write = number()
    task = stage(one.cluster("anna"), write, 0, b"hers")
    assert anna.commit(HERS, write, [task]).visible, "the writer does not belong to the admin"
    assert one.values() == [b"hers"]


def test_a_writer_belongs_to_the_first_that_decides_as_it(one: Guarded) -> None:
    anna, bert = AtomicWrites(one.cluster("anna")), AtomicWrites(one.cluster("bert"))
    write = number()
    task = stage(one.cluster("anna"), write, 0, b"first")
    assert anna.commit(HERS, write, [task]).visible
    assert (anna.find_committed(HERS) or HERS).version == 1
    second = WriteIdentity(writer=HERS.writer, version=2)
    his = number()
    task = stage(one.cluster("bert"), his, 0, b"second", by=second)
    for attempt in (
        lambda: bert.commit(second, his, [task]),
        lambda: bert.abort(second, his),
        lambda: bert.find_committed(HERS),
    ):
        with pytest.raises(NotAuthorizedError, match="belongs to user:anna"):
            attempt()
    one.rules.add([Rule("writer", "query:*", "user:bert", "alter")])
    again = number()
    task = stage(one.cluster("bert"), again, 0, b"second", by=second)

    def is_committed() -> bool:
        try:
            return bert.commit(second, again, [task]).visible
        except NotAuthorizedError:
            return False

    wait_until(is_committed)
    third, write = WriteIdentity(writer=HERS.writer, version=3), number()
    task = stage(one.cluster("anna"), write, 0, b"third", by=third)
    assert anna.commit(third, write, [task]).visible, "it is hers still"
    assert one.values() == [b"first", b"second", b"third"]


def test_a_decision_about_what_another_has_staged_publishes_nothing(one: Guarded) -> None:
    """He has a promise of the broker, for a write of his own."""
    write, own = number(), number()
    bert = AtomicWrites(one.cluster("bert"))
    task = stage(one.cluster("anna"), write, 0, b"hers")
    his = stage(one.cluster("bert"), own, 0, b"his", by=HIS)
    promises = bert._prepare(HIS, bert._decision(HIS, own, [his]))
    forged = DecideRequest(HIS.writer, "", bert._decision(HIS, write, [task]), promises=promises)
    assert one.ask("bert", Api.DECIDE, forged, DecideResponse).outcome == "decided"
    with Session(one.zookeeper, client_name="test") as session:
        writers = WriterRegistry(session)
        wait_until(lambda: not writers.pending().states, message="his decision to be given up")
    assert one.values() == []
    assert AtomicWrites(one.cluster("anna")).commit(HERS, write, [task]).committed
    wait_until(lambda: one.values() == [b"hers"])


def test_what_is_decided_is_published_by_who_may_write_as_the_writer(one: Guarded) -> None:
    write = number()
    decision = decided(one, write, stage(one.cluster("anna"), write, 0, b"hers"))
    rule = Rule("writer", "*", "user:bert", "write")
    share = WriteShare("t", decision.topics["t"].topic_id, 0, 1)
    one.rules.remove([rule])

    def publish(writer: str) -> Any:
        request = PublishRequest(write, "0", [share], writer)
        return one.ask("bert", Api.PUBLISH, request, ShareResponse)

    wait_until(lambda: isinstance(publish(HERS.writer), NotAuthorizedError))
    assert isinstance(publish(""), NotAuthorizedError)
    one.rules.add([rule])
    wait_until(lambda: isinstance(publish(HERS.writer), ShareResponse))
    assert one.values() == [b"hers"]


def test_who_may_write_no_more_commits_nothing(one: Guarded) -> None:
    write = number()
    anna = AtomicWrites(one.cluster("anna"))
    task = stage(one.cluster("anna"), write, 0, b"hers", where=OTHER)
    decision = anna._decision(HERS, write, [task])
    promises = anna._prepare(HERS, decision)
    one.rules.add([Rule("topic", "other", "user:anna", "write", allow=False)])

    def is_refused() -> bool:
        look = DecideRequest(HERS.writer, "", decision, look=True)
        return isinstance(one.ask("anna", Api.DECIDE, look, DecideResponse), NotAuthorizedError)

    wait_until(is_refused)
    with pytest.raises(NotAuthorizedError, match="may not write the topic other"):
        anna._decide(HERS, decision, promises, None)
    assert one.values(OTHER) == []


def test_whoever_leads_next_knows_whose_a_write_is(guarded: Guarded) -> None:
    for each in (1, 2, 3):
        guarded.start(each)
    guarded.create("t", replication=3)
    anna, bert = AtomicWrites(guarded.cluster("anna")), AtomicWrites(guarded.cluster("bert"))
    write = number()
    task = stage(guarded.cluster("anna"), write, 0, b"hers")
    before = guarded.cluster("anna").leader(T0, guarded.cluster("anna").retry_deadline()).broker_id
    guarded.stop(before)
    wait_until(
        lambda: any(one._replica_manager.find(T0) for one, _ in guarded.running.values()),
        message="another leader",
    )
    with pytest.raises(NotAuthorizedError, match="belongs to another principal"):
        bert._prepare(HIS, bert._decision(HIS, write, [task]))
    with pytest.raises(NotAuthorizedError, match="was begun by another"):
        stage(guarded.cluster("bert"), write, 1, b"his")
    for cluster in (guarded.cluster("anna"), guarded.cluster("bert")):
        cluster.invalidate("t")
    assert isinstance(discard(guarded, "bert", write), NotAuthorizedError)
    assert anna.commit(HERS, write, [task]).visible
    assert guarded.values() == [b"hers"]


def test_what_is_decided_is_published_after_a_restart(one: Guarded) -> None:
    write = number()
    decided(one, write, stage(one.cluster("anna"), write, 0, b"hers"))
    one.restart(1)
    wait_until(lambda: one.values() == [b"hers"])


def test_what_was_begun_before_brokers_asked_belongs_to_nobody(guarded: Guarded) -> None:
    guarded.start(1, SecurityConfig())
    nobody = guarded.cluster("nobody")
    Admin(nobody).create_topic("t", partitions=1)
    writes = AtomicWrites(nobody)
    decided_before, staged_before, discarded = number(), number(), number()
    task = stage(nobody, decided_before, 0, b"first")
    decision = writes._decision(HERS, decided_before, [task])
    assert writes._decide(HERS, decision, writes._prepare(HERS, decision), None) is None
    second = WriteIdentity(writer=HERS.writer, version=2)
    task = stage(nobody, staged_before, 0, b"second", by=second)
    stage(nobody, discarded, 0, b"dropped")
    guarded.restart(1)
    anna = AtomicWrites(guarded.cluster("anna"))
    assert isinstance(discard(guarded, "anna", discarded), DiscardResponse)
    assert anna.commit(second, staged_before, [task]).committed
    wait_until(lambda: guarded.values() == [b"first", b"second"])


def test_what_was_staged_under_rules_is_published_where_a_broker_asks_for_none(
    guarded: Guarded,
) -> None:
    """Rules come and go broker by broker: who decides without them marks nothing,
    and what was staged is marked."""
    guarded.start(1)
    guarded.create("t")
    write = number()
    anna = AtomicWrites(guarded.cluster("anna"))
    decision = anna._decision(HERS, write, [stage(guarded.cluster("anna"), write, 0, b"hers")])
    request = DecideRequest(HERS.writer, "", decision, promises=anna._prepare(HERS, decision))
    asks_for_none = SecurityConfig(authenticate=True)
    other = guarded.start(2, asks_for_none)
    guarded.stop(1)
    cluster = guarded.cluster("anna")
    answer = cluster.call(
        other.address, Api.DECIDE, request, DecideResponse, deadline=cluster.retry_deadline()
    )
    assert answer.outcome == "decided"
    guarded.start(1, asks_for_none)
    guarded._clusters.clear()  # it may have got another port
    wait_until(lambda: guarded.values() == [b"hers"], message="it to be published")
