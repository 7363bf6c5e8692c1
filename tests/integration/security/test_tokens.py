"""Tokens at a real broker: of tasks, of brokers, by certificate, and when they expire."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_logbus.broker import Broker, SecurityConfig, TlsConfig
from spark_logbus.broker.security.known import SecurityState
from spark_logbus.client import Admin, Bootstrap, ClientConfig, Cluster, Producer, RangeReader
from spark_logbus.coordination.security.access_rules import RuleRegistry
from spark_logbus.coordination.security.users import UserRegistry
from spark_logbus.datasource.source import seen_brokers
from spark_logbus.errors import AuthenticationError, NotAuthorizedError, UnknownTopicError
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.security.acls import Rule
from spark_logbus.security.logins import PasswordLogin
from spark_logbus.security.tls import ClientTls
from spark_logbus.security.tokens import verify
from spark_logbus.spark.driver import DriverConnections
from spark_logbus.spark.worker import driver_cluster, shared_cluster
from spark_logbus.zookeeper import Session
from tests.helpers import wait_until
from tests.servers.broker import broker_here
from tests.servers.certificates import Authority

ANNA = PasswordLogin(user="anna", password="anna's password")
BERT = PasswordLogin(user="bert", password="bert's password")
CONFIG = ClientConfig(retry_deadline_ms=20_000)


@dataclass
class Secured:
    """A broker with TLS and rules: anna reads and writes t and u, bert reads t, and so does who
    shows a certificate of "reader"."""

    broker: Broker
    zookeeper: str
    session: Session
    authority: Authority

    def driver(self, login: PasswordLogin | None, tls: ClientTls | None = None) -> Cluster:
        tls = tls or ClientTls(ca=self.authority.ca)
        return Cluster.from_zookeeper(
            self.zookeeper, ClientConfig(tls=tls, login=login, retry_deadline_ms=20_000)
        )

    def at(self, now_us: Callable[[], int], *, also_at_logins: bool) -> None:
        """Sets the clock by which the broker decides what has expired."""
        security = self.broker._security
        assert security is not None
        security.authorization._now_us = now_us
        if also_at_logins:
            security.authentication._now_us = now_us


@pytest.fixture
def secured(tmp_path: Path, chroot: str) -> Iterator[Secured]:
    authority = Authority(tmp_path / "ca")
    files = authority.files("broker", "127.0.0.1")
    with Session(chroot, client_name="test") as session:
        for each in (ANNA, BERT):
            UserRegistry(session).add(each.user, each.password, now_us=1)
        rules = [Rule("topic", name, "user:anna", "all") for name in ("t", "u")]
        rules += [Rule("topic", "t", who, "read") for who in ("user:bert", "certificate:reader")]
        RuleRegistry(session).add(rules)
        with broker_here(
            tmp_path / "broker",
            chroot,
            tls=TlsConfig(
                certificate=files.certificate,
                key=files.key,
                client_ca=authority.ca_file,
                client_certificates="optional",
                port=0,
            ),
            security=SecurityConfig(authenticate=True, authorize=True),
        ) as broker:
            found = Secured(broker, chroot, session, authority)
            with found.driver(ANNA) as cluster:
                for name in ("t", "u"):
                    Admin(cluster).create_topic(name, partitions=1)
                with Producer(cluster) as producer:
                    producer.send("t", b"first").result(60)
            yield found


def test_a_standing_connection_goes_on_with_the_next_token(secured: Secured) -> None:
    with secured.driver(ANNA) as driver:
        first = driver.for_tasks(["t"], "read", "write")
        with Cluster.connect(first, CONFIG) as tasks, Producer(tasks) as producer:
            assert producer.send("t", b"second").result(60).offset == 1
            assert values(tasks) == [b"first"]
            driver._tokens._known.clear()
            renewed = driver.for_tasks(["t"], "read", "write")
            assert renewed == first, "of the same scope"
            assert expiry(renewed) > expiry(first)
            secured.at(lambda: expiry(first), also_at_logins=True)
            tasks.take_access(renewed)
            tasks.take_access(first)  # of a task that is repeated
            assert producer.send("t", b"third").result(60).offset == 2
            assert values(tasks) == [b"first"]


def test_a_task_that_outlives_its_token_is_told_what_to_do(secured: Secured) -> None:
    with secured.driver(BERT) as driver:
        access = driver.for_tasks(["t"], "read")
        with Cluster.connect(access, CONFIG) as tasks:
            assert values(tasks) == [b"first"]
            secured.at(lambda: expiry(access), also_at_logins=True)
            for _ in range(60):  # logins with it are no guesses, and lock nobody out
                with pytest.raises(AuthenticationError, match=r"has expired.*token_max_ms"):
                    values(tasks)
        assert values(driver) == [b"first"], "its password has not"


def test_a_worker_that_served_one_job_serves_another_as_that_one(secured: Secured) -> None:
    with secured.driver(ANNA) as anna, secured.driver(BERT) as bert:
        of_t, of_u = anna.for_tasks(["t"], "read", "write"), anna.for_tasks(["u"], "read")
        assert values(shared_cluster(of_t)) == [b"first"]
        with pytest.raises(UnknownTopicError):
            values(shared_cluster(of_u))
        of_reads = shared_cluster(anna.for_tasks(["t"], "read"))
        with (
            pytest.raises(NotAuthorizedError, match="A token of user:anna is not good to write"),
            Producer(of_reads) as producer,
        ):
            producer.send("t", b"x").result(60)
        berts = shared_cluster(bert.for_tasks(["t"], "read", "write"))
        assert values(berts) == [b"first"]
        with (
            pytest.raises(NotAuthorizedError, match="user:bert may not write the topic t"),
            Producer(berts) as producer,
        ):
            producer.send("t", b"x").result(60)
        assert shared_cluster(of_t) is shared_cluster(anna.for_tasks(["t"], "read", "write"))


def test_who_shows_a_certificate_gets_tokens_and_tasks_show_none(secured: Secured) -> None:
    files = secured.authority.files("reader")
    tls = ClientTls(ca=secured.authority.ca, certificate=files.certificate, key=files.key)
    with secured.driver(None, tls) as driver:
        access = driver.for_tasks(["t"], "read").access
        assert access is not None
        assert access.tls == ClientTls(ca=secured.authority.ca), "nothing of the key"
        assert files.key.name.encode() not in pickle.dumps(access)
        with Cluster.connect(driver.for_tasks(["t"], "read"), CONFIG) as tasks:
            assert values(tasks) == [b"first"]
            with pytest.raises(NotAuthorizedError, match="certificate:reader may not write"):
                Producer(tasks).send("t", b"x").result(60)


def test_a_broker_shows_its_token_when_it_connects_and_never_again(secured: Secured) -> None:
    security = secured.broker._security
    assert security is not None
    config = ClientConfig(
        tls=ClientTls(ca=secured.authority.ca), login=security.login(), local_sockets=False
    )
    with Cluster.connect(Bootstrap((secured.broker.address,)), config) as broker:
        topics = Admin(broker).topics()
        assert {each.name for each in topics} >= {"t", "u"}
        secured.at(lambda: 1 << 62, also_at_logins=True)
        assert Admin(broker).topics() == topics, "on the connection that stands"
    with pytest.raises(AuthenticationError, match="has expired"):
        Cluster.connect(Bootstrap((secured.broker.address,)), config)


@pytest.fixture
def profile(secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A profile of bert, with the password in the variable BERTS."""
    profiles = tmp_path / "profiles.toml"
    profiles.write_text(
        f'[test]\nzookeeper = "{secured.zookeeper}"\ntls_ca = "{secured.authority.ca_file}"\n'
        'user = "bert"\npassword_env = "BERTS"\n'
    )
    profiles.chmod(0o600)
    monkeypatch.setenv("LOGBUS_PROFILES", str(profiles))
    monkeypatch.setenv("BERTS", BERT.password)
    return "profile:test"


def test_a_driver_logs_in_anew_when_its_profile_says_something_else(
    secured: Secured, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = driver_cluster(profile)
    assert values(first) == [b"first"]
    assert driver_cluster(profile) is first
    given = first.for_tasks(["t"], "read")
    assert values(shared_cluster(given)) == [b"first"]
    another = "another password of bert"
    UserRegistry(secured.session).set_password("bert", another, now_us=2)
    wait_until(lambda: is_refused(first), message="the end of the password")
    assert is_refused(shared_cluster(given)), "so is the token of before"
    monkeypatch.setenv("BERTS", another)
    assert values(driver_cluster(profile)) == [b"first"]
    assert values(shared_cluster(driver_cluster(profile).for_tasks(["t"], "read"))) == [b"first"]


def is_refused(cluster: Cluster) -> bool:
    try:
        values(cluster)
    except AuthenticationError:
        return True
    return False


def test_a_stream_goes_to_the_port_where_its_profile_lets_it(
    secured: Secured, profile: str
) -> None:
    seen = seen_brokers({"profile": "test", "subscribe": "t"})
    assert seen.addresses == (("127.0.0.1", secured.broker.address.tls_port),)
    brokers = DriverConnections(profile, brokers=seen.addresses)
    try:
        assert values(brokers.cluster()) == [b"first"]
    finally:
        brokers.close()


def test_a_job_of_very_many_topics_gets_one_token(secured: Secured) -> None:
    names = ["t", *(f"{number * 7919 % 100_000:05}-{number:x}-events" for number in range(3_000))]
    with secured.driver(BERT) as driver:
        assert values(shared_cluster(driver.for_tasks(names, "read"))) == [b"first"]


def test_no_key_signs_before_all_brokers_may_know_it(secured: Secured) -> None:
    security = secured.broker._security
    assert security is not None
    state, now_us = security.state, max(each.made_us for each in security.state._keys.keys.values())
    state._stamp_us = lambda: now_us + 25 * 3_600_000_000
    state.renew_keys()
    assert len(state.keys) == 2
    old, new = sorted(state.keys)
    with secured.driver(BERT) as driver:
        state._stamp_us = lambda: now_us + 25 * 3_600_000_000 + 1
        assert key_of(state, driver) == old
        state._stamp_us = lambda: now_us + 26 * 3_600_000_000
        assert key_of(state, driver) == new


def key_of(state: SecurityState, driver: Cluster) -> int:
    """Returns the key that signs a token now."""
    driver._tokens._known.clear()
    access = driver.for_tasks(["t"], "read").access
    assert access is not None
    assert access.token is not None
    token = access.token.value
    [found] = [number for number, key in state.keys.items() if is_signed(token, key)]
    return found


def is_signed(token: bytes, key: bytes) -> bool:
    try:
        verify(token, {1: key}, now_us=0)
    except AuthenticationError:
        return False
    return True


def expiry(bootstrap: Bootstrap) -> int:
    assert bootstrap.access is not None
    assert bootstrap.access.token is not None
    return bootstrap.access.token.expires_us


def values(cluster: Cluster) -> list[bytes | None]:
    """Returns the first value of t."""
    [fetched, *_] = RangeReader(cluster, OffsetRange(TopicPartition("t", 0), 0, 1))
    found: list[bytes | None] = fetched.arrow_batch.column("value").to_pylist()
    return found[:1]
