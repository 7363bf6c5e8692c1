"""Users, access rules and tokens at a broker that asks who connects."""

from __future__ import annotations

import os
import pwd
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_logbus.broker import Broker, SecurityConfig
from spark_logbus.client import (
    Admin,
    Bootstrap,
    ClientConfig,
    Cluster,
    Producer,
    RangeReader,
)
from spark_logbus.clock import SystemClock
from spark_logbus.coordination.security.access_rules import RuleRegistry
from spark_logbus.coordination.security.users import UserRegistry
from spark_logbus.errors import (
    AuthenticationError,
    LogbusError,
    NotAuthorizedError,
    UnknownTopicError,
)
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.protocol import Api, IssueTokenRequest, IssueTokenResponse
from spark_logbus.retry import Deadline
from spark_logbus.security.acls import Rule
from spark_logbus.security.logins import Login, PasswordLogin, TokenLogin
from spark_logbus.security.tokens import Claims, Grant
from spark_logbus.wire.connect import connect
from spark_logbus.zookeeper import Session
from tests.helpers import wait_until
from tests.servers.broker import broker_here

ANNA = PasswordLogin(user="anna", password="anna's password")
BERT = PasswordLogin(user="bert", password="bert's password", mechanism="SCRAM-SHA-256")
ADMIN = PasswordLogin(user="admin", password="the admin's")


def config(login: Login | None) -> ClientConfig:
    return ClientConfig(client_id="test", login=login, local_sockets=False, retry_deadline_ms=3_000)


@dataclass
class Guarded:
    """A broker that lets known users do what rules allow; topics t and secret."""

    broker: Broker
    zookeeper: str
    session: Session

    def cluster(self, login: Login | None) -> Cluster:
        address = self.broker.address
        return Cluster.connect(Bootstrap.at([(address.host, address.port)]), config(login))

    def allow(self, principal: str, operation: str, name: str, *, allow: bool = True) -> Rule:
        rule = Rule("topic", name, principal, operation, allow)
        assert RuleRegistry(self.session).add([rule]) == [rule]
        return rule

    def forget(self, rule: Rule) -> None:
        assert RuleRegistry(self.session).remove([rule]) == [rule]

    def wait_until_allowed(self, login: Login, topic: str) -> None:
        wait_until(lambda: topic in self.topics(login))

    def topics(self, login: Login | None) -> list[str]:
        with self.cluster(login) as cluster:
            return sorted(each.name for each in Admin(cluster).topics())


@pytest.fixture
def guarded(tmp_path: Path, chroot: str) -> Iterator[Guarded]:
    security = SecurityConfig(authenticate=True, authorize=True, super_principals=["user:admin"])
    with Session(chroot, client_name="test") as session:
        users = UserRegistry(session)
        for each in (ANNA, BERT, ADMIN):
            users.add(each.user, each.password, now_us=1)
        with broker_here(tmp_path / "broker", chroot, security=security) as broker:
            found = Guarded(broker, chroot, session)
            with found.cluster(ADMIN) as cluster:
                for name in ("t", "secret"):
                    Admin(cluster).create_topic(name, partitions=1)
            yield found


def test_who_proves_nothing_or_wrongly_gets_in_nowhere(guarded: Guarded) -> None:
    wrong = PasswordLogin(user="anna", password="another one")
    nobody = PasswordLogin(user="nobody", password="another one")
    said = set()
    for login in (wrong, nobody):
        with pytest.raises(AuthenticationError, match="The user or the password is wrong") as met:
            guarded.topics(login)
        said.add(str(met.value))
    assert len(said) == 1, "nobody learns who exists"
    with pytest.raises(AuthenticationError, match="takes nobody whom it does not know"):
        guarded.topics(None)
    assert guarded.topics(ADMIN) == ["secret", "t"]


def test_users_see_and_do_what_rules_allow(guarded: Guarded) -> None:
    assert guarded.topics(ANNA) == []
    guarded.allow("user:anna", "write", "t")
    guarded.allow("user:bert", "read", "*")
    guarded.allow("user:bert", "read", "secret", allow=False)
    guarded.wait_until_allowed(ANNA, "t")
    guarded.wait_until_allowed(BERT, "t")
    with guarded.cluster(ANNA) as cluster, Producer(cluster) as producer:
        assert producer.send("t", b"hers").result(60).offset == 0
        with pytest.raises(UnknownTopicError):
            producer.send("secret", b"x").result(60)
        with pytest.raises(NotAuthorizedError, match="user:anna may not read the topic t"):
            list(RangeReader(cluster, OffsetRange(TopicPartition("t", 0), 0, 1)))
        with pytest.raises(NotAuthorizedError, match="may not delete the topic t"):
            Admin(cluster).delete_topic("t")
    with guarded.cluster(BERT) as cluster:
        [fetched] = RangeReader(cluster, OffsetRange(TopicPartition("t", 0), 0, 1))
        assert fetched.arrow_batch.column("value").to_pylist() == [b"hers"]
        with pytest.raises(NotAuthorizedError, match="user:bert may not read the topic secret"):
            list(RangeReader(cluster, OffsetRange(TopicPartition("secret", 0), 0, 1)))
        with pytest.raises(NotAuthorizedError, match="user:bert may not create the topic mine"):
            Admin(cluster).create_topic("mine", partitions=1)


def test_a_read_that_waits_ends_when_its_rule_goes(guarded: Guarded) -> None:
    rule = guarded.allow("user:bert", "read", "t")
    guarded.wait_until_allowed(BERT, "t")
    met: list[LogbusError] = []

    def read() -> None:
        try:
            with guarded.cluster(BERT) as cluster:
                wanted = OffsetRange(TopicPartition("t", 0), 0, 1)
                list(RangeReader(cluster, wanted, missing_tail_wait_ms=60_000))
        except LogbusError as error:
            met.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    network = guarded.broker._network
    assert network is not None
    wait_until(lambda: network.waiting() > 0, message="the read to wait")
    guarded.forget(rule)
    thread.join(60)
    assert [type(each) for each in met] == [NotAuthorizedError]


def test_a_user_who_is_removed_is_nobody_on_standing_connections(guarded: Guarded) -> None:
    guarded.allow("user:bert", "read", "t")
    guarded.wait_until_allowed(BERT, "t")
    with guarded.cluster(BERT) as cluster:
        assert Admin(cluster).topics()
        UserRegistry(guarded.session).remove("bert")

        def is_refused() -> bool:
            try:
                Admin(cluster).topics()
            except AuthenticationError:
                return True
            return False

        wait_until(is_refused)


def test_a_token_gives_no_more_than_it_says_and_than_its_owner_may(guarded: Guarded) -> None:
    read = guarded.allow("user:bert", "read", "*")
    guarded.wait_until_allowed(BERT, "t")
    token = issue(guarded, BERT, Grant("topic", "t", ("read", "write", "describe")))
    holder = TokenLogin(get=lambda: token)
    wait_until(lambda: guarded.topics(holder) == ["t"])
    with (
        guarded.cluster(holder) as cluster,
        Producer(cluster) as producer,
        pytest.raises(NotAuthorizedError, match="may not write the topic t"),
    ):
        producer.send("t", b"x").result(60)
    with pytest.raises(NotAuthorizedError, match="gets no other token"):
        issue(guarded, holder, Grant("topic", "*", ("read",)))
    guarded.forget(read)
    wait_until(lambda: guarded.topics(holder) == [])
    bad = bytes([token[0] ^ 1]) + token[1:]
    with pytest.raises(AuthenticationError, match="not one that brokers of this cluster gave"):
        guarded.topics(TokenLogin(get=lambda: bad))


def test_nobody_else_on_the_machine_reads_the_files(guarded: Guarded) -> None:
    assert stat.S_IMODE(guarded.broker.config.data_dir.stat().st_mode) == 0o700


def test_who_has_the_name_of_the_brokers_user_elsewhere_is_not_taken_for_it(
    guarded: Guarded,
) -> None:
    security = guarded.broker._security
    assert security is not None
    owner = f"local:{pwd.getpwuid(os.geteuid()).pw_name}"
    expires_us = SystemClock().now_us() + 60_000_000

    def token(owner: str) -> Login:
        signed = security.state.token(lambda key_id: Claims(key_id, owner, expires_us))
        return TokenLogin(get=lambda: signed)

    with pytest.raises(AuthenticationError, match="over its UNIX socket only"):
        guarded.cluster(token(owner))
    assert guarded.topics(token("local:somebody-else")) == []


def test_failed_logins_are_limited_and_others_get_in(guarded: Guarded) -> None:
    wrong = PasswordLogin(user="anna", password="wrong password")

    def refused() -> str:
        with pytest.raises(AuthenticationError) as met:
            guarded.topics(wrong)
        return str(met.value)

    assert "Too many logins" in [refused() for _ in range(8)][-1]
    assert guarded.topics(ADMIN) == ["secret", "t"]


def issue(guarded: Guarded, login: Login, *grants: Grant) -> bytes:
    deadline = Deadline.after_ms(guarded.broker._clock, 60_000)
    connection = connect(guarded.broker.address, config(login).connections, deadline)
    try:
        request = IssueTokenRequest(grants=list(grants), lifetime_ms=60_000)
        pending = connection.send(Api.ISSUE_TOKEN, request)
        return pending.result(IssueTokenResponse, deadline).token
    finally:
        connection.close()
