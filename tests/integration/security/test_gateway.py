"""Clients at a gateway, which speaks ZooKeeper's protocol and lets each do what it may."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spark_logbus.broker import GatewayConfig
from spark_logbus.client import (
    Admin,
    ClientConfig,
    Cluster,
    Consumer,
    ConsumerConfig,
    Earliest,
    Producer,
)
from spark_logbus.coordination import paths
from spark_logbus.coordination.cluster.brokers import BrokerRegistry
from spark_logbus.coordination.groups.offsets import GroupOffsets
from spark_logbus.coordination.groups.rewinds import GroupRewinds
from spark_logbus.coordination.locks import Lock
from spark_logbus.coordination.security.access_rules import RuleRegistry
from spark_logbus.coordination.security.token_keys import TokenKeys
from spark_logbus.coordination.security.users import UserRegistry
from spark_logbus.errors import (
    CoordinationError,
    LockHeldError,
    ZooKeeperAccessError,
    ZooKeeperAddressError,
)
from spark_logbus.model import TopicPartition
from spark_logbus.schemas.registry.registry import SchemaRegistry
from spark_logbus.security import profiles
from spark_logbus.security.acls import Rule
from spark_logbus.zookeeper import Session, SessionState
from spark_logbus.zookeeper.nodes import Nodes
from spark_logbus.zookeeper.transactions import Create, SetData
from spark_logbus.zookeeper.watches import WatchedRefresh
from tests.helpers import wait_until
from tests.servers.gateway import Gated, gated

T0 = TopicPartition("t", 0)
OLD = '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}'


@pytest.fixture
def cluster(tmp_path: Path, chroot: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gated]:
    """A broker with a gateway, the users anna and bert, and the topic t."""
    with gated(tmp_path, chroot) as found:
        monkeypatch.setenv(profiles.FILE_VARIABLE, str(found.profiles))
        with found.broker(1):
            found.add_user("anna", "bert", "admin")
            with Cluster.from_zookeeper(found.profile("admin"), config()) as cluster:
                Admin(cluster).create_topic("t", partitions=2)
            yield found


def config() -> ClientConfig:
    return ClientConfig(client_id="test", local_sockets=False)


def session(address: str, **more: Any) -> Session:
    return Session(address, client_name="client", expects_cluster=True, **more)


def asked(opened: Session, submit: Callable[[Any], Any]) -> Any:
    """The answer to one request of kazoo's client."""
    return opened.call("ask", submit, opened.deadline())


def test_a_group_is_read_and_written_by_whom_a_rule_lets(cluster: Gated) -> None:
    anna, bert = cluster.profile("anna"), cluster.profile("bert")
    cluster.allow("user:anna", ("write", "group", "g"), ("read", "topic", "t"))
    with session(anna) as hers:
        offsets = GroupOffsets(hers)
        offsets.commit("g", {T0: 7}, actor="test")
        assert offsets.committed("g")[T0].offset == 7
        GroupRewinds(hers).record("g", {T0: 3}, reason="it", actor="test")
        assert offsets.committed("g")[T0].offset == 3
        with pytest.raises(
            ZooKeeperAccessError, match=r"does not let user:anna .* one about the group other"
        ):
            offsets.commit("other", {T0: 7}, actor="test")
        with pytest.raises(ZooKeeperAccessError, match="does not let user:anna"):
            offsets.delete("g")  # which takes the right to delete
        # Also where it is the write alone that is refused: that tells no path.
        cluster.allow("user:anna", ("describe", "group", "other"))
        with pytest.raises(ZooKeeperAccessError, match="one about the group other"):
            offsets.commit("other", {T0: 7}, actor="test")
        assert offsets.groups() == ["g"]
        cluster.allow("user:anna", ("delete", "group", "g"))
        offsets.delete("g")
        offsets.commit("g", {T0: 7}, actor="test")
    with session(bert) as his:
        offsets = GroupOffsets(his)
        with pytest.raises(ZooKeeperAccessError, match="does not let user:bert"):
            offsets.commit("g", {T0: 0}, actor="test")
        with pytest.raises(ZooKeeperAccessError, match="does not let user:bert"):
            offsets.committed("g")
        assert offsets.groups() == [], "what may not be described is hidden"
    assert GroupOffsets(cluster.session).committed("g")[T0].offset == 7


def test_members_of_a_group_share_its_partitions(cluster: Gated) -> None:
    cluster.allow(
        "user:anna", ("write", "group", "g"), ("read", "topic", "t"), ("write", "topic", "t")
    )
    profile = cluster.profile("anna")
    with Cluster.from_zookeeper(profile, config()) as found:
        with Producer(found) as producer:
            for number in range(10):
                producer.send("t", b"%d" % number, partition=number % 2).result(60)
        got: set[bytes | None] = set()
        settings = ConsumerConfig(group="g", start=Earliest())
        with Consumer(found, settings) as one, Consumer(found, settings) as other:
            for consumer in (one, other):
                consumer.subscribe("t")

            def all_came() -> bool:
                for consumer in (one, other):
                    got.update(record.value for record in consumer.poll(0.1))
                return len(got) == 10 and len(one.assignment) == len(other.assignment) == 1

            wait_until(all_came)
            for consumer in (one, other):
                consumer.commit()
    committed = GroupOffsets(cluster.session).committed("g")
    assert {each.offset for each in committed.values()} == {5}


def test_a_lock_is_taken_by_whom_a_rule_lets(cluster: Gated) -> None:
    name = "s3://bucket/table"
    cluster.allow("user:anna", ("write", "lock", name))
    cluster.allow("user:bert", ("write", "lock", "s3://other/*"))
    with session(cluster.profile("anna")) as hers, session(cluster.profile("bert")) as his:
        with Lock(hers, name, holder="anna") as held:
            held.check()
            with pytest.raises(ZooKeeperAccessError):
                Lock(his, name, holder="bert").acquire()
            with pytest.raises(LockHeldError, match="locked by anna"):
                Lock(cluster.session, name, holder="test").acquire()
        with Lock(his, "s3://other/t", holder="bert"):
            pass


def test_schemas_are_read_by_all_and_registered_by_whom_all_subjects_are_open_to(
    cluster: Gated,
) -> None:
    with session(cluster.profile("admin")) as opened:
        schema_id = SchemaRegistry(opened).register("s", OLD).schema_id
        SchemaRegistry(opened).register("hidden", OLD)
    cluster.allow("user:anna", ("read", "subject", "s"))
    cluster.allow("user:bert", ("write", "subject", "s"))
    with session(cluster.profile("anna")) as opened:
        registry = SchemaRegistry(opened)
        assert registry.version("s").schema_id == schema_id
        assert registry.by_id(schema_id).text
        assert registry.subjects() == ["s"]
        with pytest.raises(ZooKeeperAccessError):
            registry.version("hidden")
        with pytest.raises(ZooKeeperAccessError):
            registry.register("s", OLD.replace("long", "double"))
    with session(cluster.profile("bert")) as opened:
        with pytest.raises(ZooKeeperAccessError):  # its id and content are of all subjects
            SchemaRegistry(opened).register("s", OLD.replace("long", "double"))
        cluster.allow("user:bert", ("write", "subject", "*"))
        SchemaRegistry(opened).register("mine", OLD)


def test_users_and_rules_are_written_by_whom_the_cluster_is_open_to(cluster: Gated) -> None:
    rule = Rule("topic", "t", "user:bert", "read", True)
    with session(cluster.profile("anna")) as opened:
        for administer in (
            lambda: UserRegistry(opened).add("mallory", "a password", now_us=1),
            lambda: RuleRegistry(opened).add([rule]),
            lambda: RuleRegistry(opened).all(),
            lambda: TokenKeys(opened).renew(now_us=1),
        ):
            with pytest.raises(ZooKeeperAccessError):
                administer()
        cluster.allow("user:anna", ("alter", "cluster", "*"))
        UserRegistry(opened).add("carl", "a password", now_us=1)
        UserRegistry(opened).set_password("carl", "another password", now_us=1)
        assert RuleRegistry(opened).add([rule]) == [rule]
        assert "carl" in UserRegistry(opened).names()
    with session(cluster.profile("admin")) as opened:
        assert rule in RuleRegistry(opened).all().rules
        with pytest.raises(ZooKeeperAccessError):  # whom no rule binds has no use for them either
            asked(opened, lambda kazoo: kazoo.get_async(cluster.chroot + paths.TOKEN_KEYS))


def test_a_transaction_is_refused_whole(cluster: Gated) -> None:
    cluster.allow("user:anna", ("write", "group", "g"))
    with session(cluster.profile("anna")) as opened:
        nodes = Nodes(opened)
        nodes.ensure("/consumers/g")
        before = cluster.refused()
        with pytest.raises(ZooKeeperAccessError):
            nodes.transact(
                "write both",
                [Create("/consumers/g/offsets"), Create("/consumers/h")],
                deadline=opened.deadline(),
            )
        assert cluster.refused() == before + 1
        assert nodes.children("/consumers/g") == []
        nodes.transact("write", [Create("/consumers/g/offsets")], deadline=opened.deadline())


def test_answers_come_in_the_order_of_their_requests(cluster: Gated) -> None:
    cluster.allow("user:anna", ("write", "group", "g"))
    root = cluster.chroot
    with session(cluster.profile("anna")) as opened:
        Nodes(opened).ensure("/consumers/g/offsets")

        def submit(kazoo: Any) -> Any:
            results = []
            for number in range(600):
                where = "g/offsets" if number % 3 else "h"
                results.append(kazoo.create_async(f"{root}/consumers/{where}/{number}", b"x"))
            return _Outcomes(results)

        found = asked(opened, submit)
    expected = [
        f"{root}/consumers/g/offsets/{number}" if number % 3 else "NoAuthError"
        for number in range(600)
    ]
    assert found == expected


class _Outcomes:
    """The outcomes of several requests: what was returned, or the name of the error."""

    def __init__(self, results: list[Any]) -> None:
        self._results = results

    def get(self, timeout: float) -> list[Any]:
        self._results[-1].wait(timeout)
        return [
            type(each.exception).__name__ if each.exception else each.get_nowait()
            for each in self._results
        ]


def test_names_that_get_a_number_stay_below_their_resource(cluster: Gated) -> None:
    cluster.allow("user:anna", ("write", "group", "g"))
    root = cluster.chroot
    with session(cluster.profile("anna")) as opened:
        Nodes(opened).ensure("/consumers/g")

        def create(path: str) -> Callable[[Any], Any]:
            return lambda kazoo: kazoo.create_async(f"{root}{path}", b"", None, False, True)

        assert asked(opened, create("/consumers/g/n-")) == f"{root}/consumers/g/n-0000000000"
        with pytest.raises(ZooKeeperAccessError):
            asked(opened, create("/consumers/g"))


def test_access_lists_of_nodes_are_the_cluster_s(cluster: Gated) -> None:
    from kazoo.security import make_acl

    cluster.allow("user:anna", ("write", "group", "g"))
    root = cluster.chroot
    mine = [make_acl("digest", "me:mine", all=True)]
    with session(cluster.profile("anna")) as opened:
        asked(opened, lambda kazoo: kazoo.create_async(f"{root}/consumers/g", b"", mine))
        with pytest.raises(ZooKeeperAccessError):
            asked(opened, lambda kazoo: kazoo.set_acls_async(f"{root}/consumers/g", mine))
    acls, _ = asked(cluster.session, lambda kazoo: kazoo.get_acls_async(f"{root}/consumers/g"))
    assert [str(each.id.scheme) for each in acls] == ["world"]


def test_watches_tell_what_others_do(cluster: Gated) -> None:
    cluster.allow("user:anna", ("write", "group", "g"))
    with session(cluster.profile("anna")) as opened:
        nodes, seen = Nodes(opened), list[bytes]()
        nodes.ensure("/consumers/g/rewinds")

        def read(_: object) -> None:
            node = nodes.get("/consumers/g/rewinds", watch=view.watch)
            assert node is not None
            seen.append(node.data)

        view = WatchedRefresh(nodes, "the test's node", read)
        view.start()
        for number in range(3):
            data = b"%d" % number
            Nodes(cluster.session).transact(
                "write", [SetData("/consumers/g/rewinds", data)],
                deadline=cluster.session.deadline(),
            )  # fmt: skip
            wait_until(partial(seen.__contains__, data))
        view.cancel()


def test_a_session_goes_on_at_another_broker(cluster: Gated) -> None:
    cluster.allow("user:anna", ("write", "lock", "l"))
    with cluster.broker(2):
        first = cluster.brokers[0]
        profile = cluster.profile("anna")
        lost: list[SessionState] = []
        with session(profile) as opened, Lock(opened, "l", holder="anna") as held:
            opened.add_listener(lost.append)
            number = opened.session_id
            port = connected_port(opened)
            away = first if port == first.gateway_port else cluster.brokers[1]
            cluster.gateways[away.config.id].stop()
            wait_until(lambda: opened.state is SessionState.CONNECTED
                       and connected_port(opened) not in (0, port))  # fmt: skip
            held.check()
            assert opened.session_id == number
            assert SessionState.LOST not in lost
    assert BrokerRegistry(cluster.session).live()[0].gateway_port == first.gateway_port


def connected_port(opened: Session) -> int:
    sock = opened._client._connection._socket
    try:
        return int(sock.getpeername()[1]) if sock is not None else 0
    except OSError:
        return 0


def test_logins_that_fail_say_so_at_once(cluster: Gated) -> None:
    address = cluster.profile("anna")
    (cluster.directory / "anna.password").write_text("another one")
    with pytest.raises(
        ZooKeeperAccessError, match=r"refused the login of user:anna.*the profile 'anna'"
    ):
        session(address).start()
    cluster.profile("nobody")
    with pytest.raises(ZooKeeperAccessError, match="refused the login of user:nobody"):
        session("profile:nobody").start()


def test_a_certificate_is_a_login(cluster: Gated) -> None:
    files = cluster.authority.files("loader")
    lines = f'tls_certificate = "{files.certificate}"\ntls_key = "{files.key}"\n'
    cluster.allow("certificate:loader", ("write", "lock", "l"))
    with (
        session(cluster.profile("loader", lines=lines)) as opened,
        Lock(opened, "l", holder="loader") as held,
    ):
        held.check()


def test_another_chroot_is_not_reached(cluster: Gated) -> None:
    address = cluster.profile("anna")
    text = cluster.profiles.read_text()
    cluster.profiles.write_text(text.replace(f'{cluster.chroot}"', '/elsewhere"'))
    with pytest.raises(
        (ZooKeeperAccessError, ZooKeeperAddressError),
        match=r"is not at /elsewhere\. Correct the path .* in the profile 'anna'",
    ):
        session(address).start()


def test_a_user_who_is_removed_loses_the_session(cluster: Gated) -> None:
    cluster.allow("user:anna", ("write", "lock", "l"))
    opened = session(cluster.profile("anna"), operation_timeout_ms=3_000)
    with opened:
        Lock(opened, "l", holder="anna").acquire()
        assert Nodes(cluster.session).exists("/locks/l")
        UserRegistry(cluster.session).remove("anna")
        wait_until(lambda: not Nodes(cluster.session).exists("/locks/l"))
        with pytest.raises(CoordinationError):
            Nodes(opened).exists("/locks/l")


def test_rules_that_go_hold_for_the_next_request(cluster: Gated) -> None:
    cluster.allow("user:anna", ("write", "group", "g"))
    with session(cluster.profile("anna")) as opened:
        offsets = GroupOffsets(opened)
        offsets.commit("g", {T0: 7}, actor="test")
        cluster.forbid("user:anna", ("write", "group", "g"))
        with pytest.raises(ZooKeeperAccessError):
            offsets.commit("g", {T0: 8}, actor="test")


def test_a_principal_has_so_many_sessions_and_no_more(cluster: Gated) -> None:
    few = GatewayConfig(port=0, max_sessions_per_principal=1)
    with cluster.broker(2, gateway=few) as broker:
        address = cluster.profile("anna", of=broker)
        second = session(address, connect_timeout_ms=1_500)
        with session(address):
            with pytest.raises(CoordinationError):
                second.start()
            with session(cluster.profile("bert", of=broker)):
                pass
        wait_until(lambda: broker.security is not None and broker.security.gateway.sessions == 0)
        with session(address):
            pass
