"""Clusters whose nodes in ZooKeeper belong to one user of it."""

from __future__ import annotations

import itertools
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from spark_logbus.broker import SecurityConfig
from spark_logbus.client import (
    Admin,
    AtomicWrites,
    ClientConfig,
    Cluster,
    Consumer,
    ConsumerConfig,
    Producer,
    StagedTask,
    WriteIdentity,
)
from spark_logbus.coordination.groups.offsets import GroupOffsets
from spark_logbus.coordination.groups.rewinds import GroupRewinds
from spark_logbus.coordination.locks import Lock
from spark_logbus.coordination.mirrors import NEW_MIRROR, MirroredTopic, Mirrors, MirrorState, Point
from spark_logbus.coordination.security.access_rules import RuleRegistry
from spark_logbus.coordination.security.users import UserRegistry
from spark_logbus.errors import ConfigError, LogbusError, ZooKeeperAccessError
from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from spark_logbus.model import Earliest, TopicPartition
from spark_logbus.record.stage_id import stage_id
from spark_logbus.schemas.registry import SchemaRegistry
from spark_logbus.security.acls import Rule
from spark_logbus.security.profiles import FILE_VARIABLE
from spark_logbus.zookeeper import Session, SessionState
from spark_logbus.zookeeper.access import Access, Hidden
from spark_logbus.zookeeper.guarding import Guarding, open_nodes
from spark_logbus.zookeeper.nodes import Nodes
from spark_logbus.zookeeper.transactions import Create
from tests.helpers import wait_until
from tests.servers.broker import broker_here
from tests.servers.command import command_at
from tests.servers.zookeeper import Proxy

USER, PASSWORD = "logbus", "a long secret"
CONFIG = ClientConfig(client_id="test", local_sockets=False, retry_deadline_ms=10_000)
OURS = [make_digest_acl(USER, PASSWORD, all=True)]


class Profiles:
    """Profiles of a user of ZooKeeper, at one server."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch(mode=0o600)

    def add(self, name: str, zookeeper: str, *, password: str | None = PASSWORD) -> str:
        text = f'[{name}]\nzookeeper = "{zookeeper}"\n'
        if password is not None:
            secret = self._path.parent / f"{name}.password"
            secret.write_text(f"{password}\n")
            text += f'zookeeper_user = "{USER}"\nzookeeper_password_file = "{secret}"\n'
        with self._path.open("a") as file:
            file.write(text)
        return f"profile:{name}"


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Profiles:
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "profiles.toml"))
    return Profiles(tmp_path / "profiles.toml")


class Tree:
    """The nodes below a chroot, as their owner sees them."""

    def __init__(self, client: KazooClient, chroot: str) -> None:
        self.client = client
        self.chroot = chroot

    def not_ours(self) -> list[str]:
        return [path for path in self.paths() if self._acls(path) not in (None, OURS)]

    def paths(self) -> list[str]:
        found = [self.chroot]
        for path in found:
            try:
                found += [f"{path}/{name}" for name in self.client.get_children(path)]
            except NoNodeError:
                continue
        return found

    def _acls(self, path: str) -> object:
        try:
            return self.client.get_acls(path)[0]
        except NoNodeError:
            return None

    @property
    def tops(self) -> set[str]:
        return set(self.client.get_children(self.chroot))


@pytest.fixture
def tree(zookeeper: EmbeddedZooKeeper) -> Iterator[Tree]:
    client = KazooClient(
        hosts=zookeeper.address, auth_data=[("digest", f"{USER}:{PASSWORD}")], timeout=60
    )
    client.start(timeout=60)
    yield Tree(client, f"/{secrets.token_hex(8)}")
    client.stop()
    client.close()


def connect_string(zookeeper: EmbeddedZooKeeper, tree: Tree) -> str:
    return f"{zookeeper.address}{tree.chroot}"


def use_everything(address: str, session: Session) -> None:
    """Leaves nodes of every kind."""
    nodes = Nodes(session)
    UserRegistry(session).add("anna", "anna's password", now_us=1)
    RuleRegistry(session).add([Rule("topic", "t", "user:anna", "read", True)])
    SchemaRegistry(session).register("t-value", '"string"')
    mirrored = MirroredTopic("1", "t", "2", {0: (Point(0, 0),)})
    Mirrors(session).write(
        "m", NEW_MIRROR, MirrorState("source", NEW_MIRROR.round, {"t": mirrored})
    )
    GroupOffsets(session).commit("by-hand", {TopicPartition("t", 0): 1}, actor="test")
    GroupRewinds(session).record(
        "by-hand", {TopicPartition("t", 0): 0}, reason="test", actor="test"
    )
    Lock(session, "held", holder="test").acquire()
    assert nodes.exists("/locks/held")


def test_every_node_of_a_cluster_is_its_users_alone(
    zookeeper: EmbeddedZooKeeper, tree: Tree, profiles: Profiles, tmp_path: Path
) -> None:
    address = profiles.add("brokers", connect_string(zookeeper, tree))
    security = SecurityConfig(authenticate=True, authorize=True)
    with (
        broker_here(tmp_path / "b", address, security=security),
        Session(address, client_name="test") as session,
    ):
        use_everything(address, session)
        assert "security" in tree.tops
    with (
        broker_here(tmp_path / "c", address, broker_id=2) as broker,
        Cluster.from_zookeeper(address, CONFIG) as cluster,
    ):
        Admin(cluster).create_topic("t", partitions=2)
        write = secrets.randbits(40)
        with Producer(cluster, stage_id=stage_id(write, 0)) as producer:
            producer.send("t", b"staged", partition=0).result(60)
        task = StagedTask(0, {TopicPartition("t", 0): 1}, 1_000)
        AtomicWrites(cluster).commit(WriteIdentity(writer="w", version=1), write, [task])
        config = ConsumerConfig(group="g", start=Earliest(), zookeeper=address, auto_commit_ms=1)
        with Consumer(cluster, config) as consumer:
            consumer.subscribe("t")
            seen: list[bytes] = []
            wait_until(lambda: seen.extend(_values(consumer)) or bool(seen))  # type: ignore[func-returns-value]
            wait_until(lambda: _polled(consumer) and "offsets" in _names(tree, "/consumers/g"))
            assert tree.not_ours() == []
            assert broker.address.port
    assert tree.tops >= {"brokers", "consumers", "locks", "mirrors", "schemas", "security",
                         "transactions"}  # fmt: skip
    assert tree.not_ours() == []


def _values(consumer: Consumer) -> list[bytes]:
    return [
        value
        for batch in consumer.poll_arrow(0.05)
        for value in batch.arrow_batch.column("value").to_pylist()
    ]


def _polled(consumer: Consumer) -> bool:
    _values(consumer)
    return True


def _names(tree: Tree, path: str) -> list[str]:
    try:
        names: list[str] = tree.client.get_children(tree.chroot + path)
    except NoNodeError:
        return []
    return names


@pytest.mark.parametrize("password", [None, "another one"])
def test_who_is_not_the_user_is_told_so_at_once(
    zookeeper: EmbeddedZooKeeper,
    tree: Tree,
    profiles: Profiles,
    tmp_path: Path,
    password: str | None,
) -> None:
    plain = connect_string(zookeeper, tree)
    with Session(profiles.add("owner", plain), client_name="owner"):
        pass
    other = profiles.add("other", plain, password=password)
    with pytest.raises(
        ZooKeeperAccessError, match=rf"does not let .* {tree.chroot} .*zookeeper_user"
    ):
        Session(other, client_name="test", expects_cluster=True).start()
    with pytest.raises(ZooKeeperAccessError, match="zookeeper_user"):
        Cluster.from_zookeeper(other, CONFIG)
    with pytest.raises(ZooKeeperAccessError), broker_here(tmp_path / "b", other):
        pass
    assert tree.paths() == [tree.chroot]


def test_a_cluster_is_guarded_while_brokers_and_producers_go_on(
    zookeeper: EmbeddedZooKeeper,
    tree: Tree,
    profiles: Profiles,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain = connect_string(zookeeper, tree)
    with broker_here(tmp_path / "b", plain), Cluster.from_zookeeper(plain, CONFIG) as cluster:
        Admin(cluster).create_topic("t", partitions=1)
    address = profiles.add("brokers", plain)
    run = command_at(address, capfd, monkeypatch)
    ended, sent = threading.Event(), 0
    with broker_here(tmp_path / "b", address), Cluster.from_zookeeper(address, CONFIG) as cluster:
        assert "guard the cluster: logbus security zookeeper --execute" in caplog.text

        def produce() -> None:
            nonlocal sent
            with Producer(cluster) as producer:
                while not ended.is_set():
                    assert producer.send("t", b"%d" % sent).result(60).offset == sent
                    sent += 1

        thread = threading.Thread(target=produce)
        thread.start()
        wait_until(lambda: sent > 10)
        # A client from before still works: what the new broker makes is open until it is told.
        with Session(plain, client_name="old") as old:
            assert Nodes(old).get("/brokers/ids/1").data  # type: ignore[union-attr]
        dry = run("security", "zookeeper")
        assert "would be made its user's alone" in dry.out
        assert tree.not_ours()
        done = run("security", "zookeeper", "--execute")
        assert (done.code, "access lists set" in done.out) == (0, True)
        assert tree.not_ours() == []
        before = sent
        Admin(cluster).create_topic("later", partitions=1)
        wait_until(lambda: sent > before + 10)
        ended.set()
        thread.join(60)
        assert tree.not_ours() == []
        with pytest.raises(ZooKeeperAccessError):
            Session(plain, client_name="stranger").start()
        assert "there is nothing to do" in run("security", "zookeeper").out
        assert run("security", "zookeeper", "--open", "--execute").code == 0
    with broker_here(tmp_path / "b", plain), Cluster.from_zookeeper(plain, CONFIG) as cluster:
        assert {each.name for each in Admin(cluster).topics()} == {"t", "later"}
    found = {tree.client.get_acls(path)[0] == OPEN_ACL_UNSAFE for path in tree.paths()}
    assert found == {True}


_KILLED = """\
import os, signal, sys
from spark_logbus.zookeeper import Session
from spark_logbus.zookeeper.guarding import Guarding, open_nodes
from spark_logbus.zookeeper.nodes import Nodes

address, step = sys.argv[1], int(sys.argv[2])

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

with Session(address, client_name="killed") as session:
    if step == 0:  # the chroot has its list, and nobody knows yet
        Nodes.touch = die
    Guarding(session).apply(lambda nodes: nodes >= step and die())
"""


@pytest.mark.parametrize("step", [0, 1, 4])
def test_guarding_that_is_killed_is_ended_by_the_next(
    zookeeper: EmbeddedZooKeeper, tree: Tree, profiles: Profiles, step: int
) -> None:
    plain = connect_string(zookeeper, tree)
    with Session(plain, client_name="test") as session:
        nodes = Nodes(session)
        for top in range(2):
            nodes.ensure(f"/{top}")
            creates = [Create(f"/{top}/{number}") for number in range(500)]
            nodes.transact("fill", creates, deadline=session.deadline())
    address = profiles.add("brokers", plain)
    ended = subprocess.run([sys.executable, "-c", _KILLED, address, str(step)], check=False)
    assert ended.returncode == -signal.SIGKILL
    with Session(address, client_name="test") as session:
        left = Guarding(session).survey().others
        assert 0 < left < 1_003
        done = Guarding(session).apply()
        assert (done.nodes, done.others, done.changed) == (1_003, 0, left)
    assert tree.not_ours() == []


def test_strangers_who_go_on_making_nodes_are_shut_out(
    zookeeper: EmbeddedZooKeeper, tree: Tree, profiles: Profiles
) -> None:
    """A stranger makes nodes in all that are there, and in its own, as long as it may."""
    plain = connect_string(zookeeper, tree)
    with Session(plain, client_name="test") as session:
        for top in range(30):
            Nodes(session).ensure(f"/{top}/{top}")
    stranger = KazooClient(hosts=zookeeper.address)
    stranger.start(timeout=60)
    made = 0

    def intrude() -> None:
        nonlocal made
        parents = tree.paths()
        for number in itertools.count():
            for parent in list(parents):
                try:
                    parents.append(stranger.create(f"{parent}/stranger-{number}"))
                    made += 1
                except (NoAuthError, NoNodeError):
                    parents.remove(parent)
            if not parents:
                return

    thread = threading.Thread(target=intrude)
    thread.start()
    try:
        wait_until(lambda: made > 100)
        with Session(profiles.add("brokers", plain), client_name="test") as session:
            done = Guarding(session).apply()
        thread.join(60)
        assert not thread.is_alive()
    finally:
        stranger.stop()
        stranger.close()
    assert done.others == 0
    assert tree.not_ours() == []


def test_a_cluster_gets_another_password_by_way_of_an_open_one(
    zookeeper: EmbeddedZooKeeper, tree: Tree, profiles: Profiles
) -> None:
    plain = connect_string(zookeeper, tree)
    later = profiles.add("later", plain, password="another one")
    with Session(profiles.add("before", plain), client_name="before") as before:
        UserRegistry(before).add("anna", "anna's password", now_us=1)
        with pytest.raises(ZooKeeperAccessError):
            Session(later, client_name="test").start()
        assert Guarding(before, opened=True).apply().others == 0
        with Session(later, client_name="later") as after:
            assert UserRegistry(after).names() == ["anna"]
            assert Guarding(after).apply().others == 0
        with pytest.raises(ZooKeeperAccessError):
            Nodes(before).ensure("/brokers")


def test_zookeepers_own_root_is_guarded_but_for_what_is_zookeepers(
    tmp_path: Path, profiles: Profiles
) -> None:
    with EmbeddedZooKeeper(tmp_path / "zookeeper", heap_mb=96) as server:
        address = profiles.add("root", f"{server.address}/")
        with Session(address, client_name="test") as session:
            assert open_nodes(session) == ["/"]
            Nodes(session).ensure("/brokers")
            assert open_nodes(session) == ["/", "/brokers"]
            done = Guarding(session).apply()
            assert (done.nodes, done.others, done.changed) == (2, 0, 2)
            assert open_nodes(session) == []
            # A session that was there before makes guarded nodes from then on.
            Nodes(session).ensure("/later")
            assert Guarding(session).survey().others == 0
        with pytest.raises(ZooKeeperAccessError):
            Session(f"{server.address}/", client_name="test").start()


def test_nodes_of_another_user_are_told_of_and_left(
    zookeeper: EmbeddedZooKeeper,
    tree: Tree,
    profiles: Profiles,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = connect_string(zookeeper, tree)
    tree.client.create(tree.chroot)
    tree.client.create(f"{tree.chroot}/a/b", makepath=True)
    tree.client.set_acls(f"{tree.chroot}/a/b", [make_digest_acl("other", "x", all=True)])
    run = command_at(profiles.add("brokers", plain), capfd, monkeypatch)
    done = run("security", "zookeeper", "--execute")
    assert done.code == 1
    assert "2 of 3 nodes are its user's alone" in done.out
    assert "/a/b" in done.out
    no_user = command_at(profiles.add("nobody", plain, password=None), capfd, monkeypatch)
    assert "does not let a session without a login" in no_user("security", "zookeeper").refusal


def test_a_cluster_needs_a_user_to_be_guarded(
    chroot: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = command_at(chroot, capfd, monkeypatch)
    assert "names no user of ZooKeeper" in run("security", "zookeeper", "--execute").refusal
    with Session(chroot, client_name="test") as session, pytest.raises(ConfigError):
        Guarding(session)


def test_secrets_are_guarded_in_an_open_cluster_too(
    zookeeper: EmbeddedZooKeeper, tree: Tree, profiles: Profiles
) -> None:
    tree.client.create(tree.chroot)
    address = profiles.add("brokers", connect_string(zookeeper, tree))
    with Session(address, client_name="test") as session:
        UserRegistry(session).add("anna", "anna's password", now_us=1)
        Nodes(session).ensure("/brokers")
    security = {path for path in tree.paths() if "/security" in path}
    assert len(security) == 3
    assert {*tree.paths()} - {*tree.not_ours()} == security


def test_a_login_that_is_refused_is_an_error_and_not_a_wait(
    chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nonsense = Access(logins=(("nonsense", Hidden("x")),))
    monkeypatch.setattr("spark_logbus.zookeeper.session.of_profile", lambda *_: nonsense)
    for timeout in (60_000, None):  # as clients and as brokers wait
        session = Session(chroot, client_name="test", connect_timeout_ms=timeout)
        with pytest.raises(ZooKeeperAccessError, match="refused the login of a session"):
            session.start()


def test_a_session_whose_login_is_refused_later_comes_back(chroot: str) -> None:
    with Proxy(chroot.partition("/")[0]) as proxy:
        session = Session(
            proxy.connect_string(chroot), client_name="test", operation_timeout_ms=60_000
        )
        with session:
            greeting = session._client._connection._invoke
            greeting._logins = (("nonsense", Hidden("x")),)
            proxy.cut()
            wait_until(lambda: session.state is SessionState.LOST)
            with pytest.raises(ZooKeeperAccessError, match="refused the login"):
                Nodes(session).ensure("/a")
            greeting._logins = ()
            wait_until(lambda: session.state is SessionState.CONNECTED)
            Nodes(session).ensure("/a")


def test_writes_that_are_not_allowed_name_the_node(
    zookeeper: EmbeddedZooKeeper, tree: Tree, chroot: str
) -> None:
    root = f"/{chroot.partition('/')[2]}"
    tree.client.create(f"{root}/theirs", acl=OURS)
    with Session(chroot, client_name="test") as session:
        nodes = Nodes(session)
        with pytest.raises(ZooKeeperAccessError, match="/theirs/child"):
            nodes.ensure("/theirs/child")
        creates = [Create("/mine"), Create("/theirs/child")]
        with pytest.raises(ZooKeeperAccessError, match="make both at /theirs/child"):
            nodes.repeat(
                "make both",
                lambda deadline: nodes.transact("make both", creates, deadline=deadline),
            )
        assert not nodes.exists("/mine")
    assert issubclass(ZooKeeperAccessError, LogbusError)
    assert not ZooKeeperAccessError.retriable
