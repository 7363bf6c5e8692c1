"""Attacks of strangers and hostile clients on a gateway."""

from __future__ import annotations

import base64
import random
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from kazoo.protocol import serialization as kazoo
from kazoo.security import OPEN_ACL_UNSAFE

from spark_logbus.broker import Broker, GatewayConfig
from spark_logbus.coordination.locks import Lock
from spark_logbus.security import profiles
from spark_logbus.security.tokens import Claims, Grant
from spark_logbus.zookeeper import Session
from spark_logbus.zookeeper.nodes import Nodes
from tests.helpers import wait_until
from tests.servers.gateway import Gated, gated, password_of
from tests.servers.raw_zookeeper import RawClient, guessed_password

FAILED = -115
REFUSED = -102


@pytest.fixture
def cluster(tmp_path: Path, chroot: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gated]:
    """A broker with a gateway, and the user anna."""
    with gated(tmp_path, chroot) as found:
        monkeypatch.setenv(profiles.FILE_VARIABLE, str(found.profiles))
        with found.broker(1):
            found.add_user("anna")
            found.allow("user:anna", ("write", "lock", "l"), ("write", "group", "g"))
            yield found


def raw(cluster: Gated) -> RawClient:
    """A connection to the newest gateway."""
    port = cluster.brokers[-1].gateway_port
    assert port is not None
    return RawClient.connect(port, cluster.authority.ca_file)


def logged_in(cluster: Gated) -> RawClient:
    client = raw(cluster)
    assert client.attach() > 0
    assert client.log_in("plain", f"anna:{password_of('anna')}") == 0
    return client


def to_zookeeper(cluster: Gated) -> RawClient:
    return RawClient.connect(int(cluster.session.connect.servers.rpartition(":")[2]))


def test_a_session_cannot_be_taken_over_by_its_number(cluster: Gated) -> None:
    with Session(cluster.zookeeper, client_name="victim") as victim:
        number = victim.session_id
        with to_zookeeper(cluster) as attacker:
            taken = attacker.attach(number, guessed_password(number))
            assert taken > 0, "else this test attacks nothing"
        with raw(cluster) as attacker:
            assert attacker.attach(number, guessed_password(number)) == 0
            with pytest.raises(EOFError):
                attacker.receive()
        with logged_in(cluster) as anna, raw(cluster) as attacker:
            seal = anna.password[16:]
            assert anna.password[:16] == guessed_password(anna.session_id)
            assert attacker.attach(number, guessed_password(number) + seal) == 0
        wait_until(lambda: Nodes(victim).exists("/consumers"))


def test_a_session_goes_on_with_its_own_password(cluster: Gated) -> None:
    with logged_in(cluster) as anna, raw(cluster) as again:
        assert again.attach(anna.session_id, anna.password) > 0
        assert again.session_id == anna.session_id
        assert again.log_in("plain", f"anna:{password_of('anna')}") == 0
        assert again.ask(kazoo.Exists(cluster.chroot, None)) == 0


def test_nothing_but_a_login_is_taken_before_it(cluster: Gated) -> None:
    for message in (
        struct.pack("!ii", 1, 3) + bytes(kazoo.Exists(cluster.chroot, None).serialize()),
        struct.pack("!ii", 1, -11),
        struct.pack("!ii", -8, 101),
        struct.pack("!ii", -4, 3),
        b"",
    ):
        with raw(cluster) as client:
            assert client.attach() > 0
            client.send(struct.pack("!ii", -2, 11))
            assert client.header()[0] == -2, "a ping is answered"
            client.send(message)
            assert client.headers_to_the_end() in ([], [(-4, 0, FAILED)])
        wait_until(partial(is_gone, cluster, client.session_id))


def is_gone(cluster: Gated, number: int) -> bool:
    """Tells if ZooKeeper knows no session of that number."""
    with to_zookeeper(cluster) as look:
        return look.attach(number, guessed_password(number)) == 0


@pytest.mark.parametrize(
    ("scheme", "proof"),
    [
        ("plain", "anna:wrong password"), ("plain", "nobody:wrong password"), ("plain", "anna"),
        ("plain", ":x"), ("plain", ""), ("plain", "x" * 300 + ":y"), ("digest", "anna:x"),
        ("token", "no base64!"), ("token", base64.b64encode(b"x" * 100).decode()),
        ("token", "A" * 8_000), ("sasl", "x"),
    ],
)  # fmt: skip
def test_false_logins_fail_alike(cluster: Gated, scheme: str, proof: str) -> None:
    with raw(cluster) as client:
        client.attach()
        assert client.log_in(scheme, proof) == FAILED
        with pytest.raises(EOFError):
            client.receive()


def test_guesses_are_limited(cluster: Gated) -> None:
    for _ in range(20):
        for password in (*6 * ["a wrong password"], password_of("anna")):
            with raw(cluster) as client:
                client.attach()
                failed = client.log_in("plain", f"anna:{password}") == FAILED
        if failed:
            return  # though the last one was right: it has to wait
    raise AssertionError("nobody has to wait after so many failures")


def test_a_thousand_hostile_messages_change_nothing(cluster: Gated) -> None:
    before = tree(cluster)
    chance = random.Random(7)
    root = cluster.chroot
    real = [
        kazoo.Create(f"{root}/consumers/h", b"x", OPEN_ACL_UNSAFE, 0),
        kazoo.SetData(f"{root}/security/users/x", b"x", -1),
        kazoo.Delete(f"{root}/brokers/ids/1", -1),
        kazoo.SetACL(f"{root}/consumers", OPEN_ACL_UNSAFE, -1),
        kazoo.Transaction([kazoo.Create(f"{root}/locks/m", b"", OPEN_ACL_UNSAFE, 1)]),
        kazoo.Reconfig("a", "b", "c", -1),
        kazoo.GetData("/zookeeper/config", None),
    ]
    sent = 0
    while sent < 1_000:
        with logged_in(cluster) as client:
            try:
                for number in range(1, 40):
                    request = chance.choice(real)
                    message = bytearray(
                        struct.pack("!ii", number, request.type) + bytes(request.serialize())
                    )
                    kind = chance.randrange(4)
                    if kind == 0:
                        message[chance.randrange(len(message))] = chance.randrange(256)
                    elif kind == 1:
                        del message[chance.randrange(len(message)) :]
                    elif kind == 2:
                        message = bytearray(chance.randbytes(chance.randrange(300)))
                    sent += 1
                    client.send(bytes(message))
                    xid, _, error = client.header()
                    assert xid != -4
                    assert error < 0 or xid <= 0, message
            except EOFError:
                continue
    assert tree(cluster) == before
    assert cluster.refused() > 100
    with Session(cluster.profile("anna"), client_name="after", expects_cluster=True) as session:
        assert Nodes(session).exists("/consumers")


def tree(cluster: Gated) -> set[str]:
    """All nodes, but for those that a broker makes when it comes to that."""
    paths = Nodes(cluster.session).descendants("", deadline=cluster.session.deadline())
    return {each for each in paths if not each.startswith("/transactions")}


@pytest.mark.parametrize("length", [(1 << 20) + 5_000, -1, 0x7FFFFFFF, -(1 << 31)])
def test_lengths_that_no_message_has_end_the_connection(cluster: Gated, length: int) -> None:
    with logged_in(cluster) as client:
        client.send_bytes(struct.pack("!i", length))
        with pytest.raises(EOFError):
            client.receive()
    with raw(cluster) as client:
        client.send_bytes(b"srvr")  # ZooKeeper's own words for its state, and all that it tells
        with pytest.raises(EOFError):
            client.receive()


def test_strangers_wait_no_longer_than_they_may_and_keep_nobody_out(cluster: Gated) -> None:
    hurried = GatewayConfig(port=0, login_timeout_ms=3_000)
    with cluster.broker(2, gateway=hurried) as broker, ExitStack() as opened:
        port = broker.gateway_port
        assert port is not None
        silent = [opened.enter_context(RawClient.connect(port)) for _ in range(30)]
        idle = [opened.enter_context(raw(cluster)) for _ in range(10)]
        for client in (*silent, *idle):
            with pytest.raises(EOFError):
                client.receive()
        with Session(cluster.profile("anna", of=broker), client_name="late", expects_cluster=True):
            pass


def test_a_token_is_good_for_what_it_says_and_as_long(cluster: Gated) -> None:
    broker = cluster.brokers[0]
    root = cluster.chroot
    lasting = token(broker, lifetime_us=60_000_000)
    with raw(cluster) as client:
        client.attach()
        assert client.log_in("token", lasting) == 0
        lock = kazoo.Create(f"{root}/locks/l", b"", OPEN_ACL_UNSAFE, 1)
        assert client.ask(lock) == 0
        group = kazoo.Create(f"{root}/consumers/g", b"", OPEN_ACL_UNSAFE, 0)
        assert client.ask(group) == REFUSED, "its owner may, and the token does not say so"
    for lifetime_us in (1_000_000, 4_000_000, 16_000_000):  # until it lasts for a login
        with raw(cluster) as client:
            client.attach()
            if client.log_in("token", token(broker, lifetime_us=lifetime_us)) == 0:
                with pytest.raises(EOFError):
                    client.receive()
                return
    raise AssertionError("no token was good for a login")


def token(broker: Broker, *, lifetime_us: int) -> str:
    security = broker.security
    assert security is not None
    mark = security.state._marks["anna"]
    grants = [Grant("lock", "l", ("write", "describe"))]
    expires_us = security.now_us() + lifetime_us
    made = security.state.token(
        lambda key_id: Claims(key_id, "user:anna", expires_us, grants, mark)
    )
    return base64.b64encode(made).decode()


def test_a_session_is_not_kept_going_by_whoever_does_not_log_in(cluster: Gated) -> None:
    with logged_in(cluster) as client:
        lock = kazoo.Create(f"{cluster.chroot}/locks/l", b"", OPEN_ACL_UNSAFE, 1)
        assert client.ask(lock) == 0
        times = 0
        while True:
            with raw(cluster) as again:
                if again.attach(client.session_id, client.password) == 0:
                    break
            times += 1
            assert times < 20
    assert times >= 5
    with Lock(cluster.session, "l", holder="test"):
        pass
