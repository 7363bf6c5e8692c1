"""Logins that fail by the thousand, and what ends when a user or a password does."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_logbus.broker.security.authentication import Authentication
from spark_logbus.coordination.security.access_rules import RuleRegistry
from spark_logbus.coordination.security.users import UserRegistry
from spark_logbus.errors import AuthenticationError, LogbusError, NotAuthorizedError
from spark_logbus.protocol import (
    Api,
    FetchResponse,
    HandshakeRequest,
    HandshakeResponse,
    MetadataRequest,
    MetadataResponse,
)
from spark_logbus.security.acls import Rule
from spark_logbus.security.logins import PasswordLogin, TokenLogin
from spark_logbus.security.tokens import Claims, Grant
from tests.builders.record_batches import record_batch
from tests.helpers import wait_until
from tests.integration.security.actors import (
    PASSWORD,
    PLAIN,
    TLS,
    UNIX,
    Guarded,
    guarded_broker,
    log_in,
    password_of,
)
from tests.servers.wire import Wire, append_request, fetch_request


@pytest.fixture
def guarded(tmp_path: Path, chroot: str) -> Iterator[Guarded]:
    with guarded_broker(tmp_path, chroot) as found:
        users = UserRegistry(found.session)
        for user in ("anna", "bert"):
            users.add(user, PASSWORD, now_us=1)
            RuleRegistry(found.session).add([Rule("topic", "t", f"user:{user}", "all")])
        wait_until(
            lambda: len(state_of(found).users) == 3 and len(state_of(found).rules.rules) == 2
        )
        yield found


def state_of(guarded: Guarded) -> Any:
    assert guarded.broker._security is not None
    return guarded.broker._security.state


def authentication_of(guarded: Guarded) -> Authentication:
    assert guarded.broker._security is not None
    return guarded.broker._security.authentication


def outcome(guarded: Guarded, login: PasswordLogin | TokenLogin, listener: str = PLAIN) -> str:
    """Logs in on a new connection; returns "in", or what the broker says."""
    with guarded.connect(listener) as wire:
        try:
            log_in(wire, login)
        except AuthenticationError as error:
            return str(error)
    return "in"


def may_ask(wire: Wire) -> bool:
    try:
        wire.call(Api.METADATA, MetadataRequest([]), MetadataResponse)
    except AuthenticationError:
        return False
    return True


def guess(guarded: Guarded, user: str, mechanism: str = "SCRAM-SHA-256") -> None:
    """Fails to log in by messages that cost the guesser nothing."""
    with guarded.connect(PLAIN) as wire:
        first = HandshakeRequest(mechanism=mechanism, data=f"n,,n={user},r=abc".encode())
        nonce = wire.call(Api.HANDSHAKE, first, HandshakeResponse).data.split(b",")[0]
        last = HandshakeRequest(
            mechanism=mechanism, data=b"c=biws," + nonce + b",p=" + b"A" * 43 + b"="
        )
        wire.call(Api.HANDSHAKE, last, HandshakeResponse)


def test_3000_failed_logins_keep_nobody_else_out(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attacks from one address, while others there get in by password, token and name."""
    token = guarded.give_token("anna", Grant("topic", "t", ("read",)))
    assert outcome(guarded, password_of("anna")) == "in"  # so she has come from there before
    derived: list[str] = []
    derive = hashlib.pbkdf2_hmac

    def counted(*arguments: Any, **more: Any) -> bytes:
        derived.append(threading.current_thread().name)
        return derive(*arguments, **more)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", counted)
    failed: list[str] = []

    def attack(number: int) -> None:
        for at in range(600):
            try:
                guess(guarded, f"user-{number}-{at}" if at % 2 else "bert")
            except LogbusError as error:
                failed.append(type(error).__name__)

    threads = [threading.Thread(target=attack, args=(each,)) for each in range(5)]
    for each in threads:
        each.start()
    met = set()
    while any(each.is_alive() for each in threads):
        met.add(outcome(guarded, password_of("anna")))
        met.add(outcome(guarded, TokenLogin(get=lambda: token)))
        met.add(outcome(guarded, TokenLogin(get=lambda: token), TLS))
        with guarded.connect(UNIX) as wire:
            log_in(wire, None)
    for each in threads:
        each.join()
    assert met == {"in"}
    assert len(failed) == 3_000
    assert "Too many" in outcome(guarded, password_of("bert"))
    # From elsewhere, here another way in, he is kept out by nothing.
    assert outcome(guarded, password_of("bert"), UNIX) == "in"
    authentication = authentication_of(guarded)
    assert authentication.limits.remembered < 3_100
    counts = {key: each.value for key, each in authentication.logins.items()}
    assert counts["SCRAM-SHA-256", "failed"] + counts["SCRAM-SHA-256", "limited"] >= 3_000
    assert counts["SCRAM-SHA-256", "failed"] < 1_500, "most are not even looked at"
    assert derived, "who logs in derives keys"
    assert not [each for each in derived if each.startswith("network")], "and no broker"


def test_known_and_unknown_users_are_answered_alike(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compares words, sizes and the habits of salts; no key is derived for any of them."""
    derived = 0

    def counted(*_: Any, **__: Any) -> bytes:
        nonlocal derived
        derived += 1
        return b""

    salts: dict[tuple[str, str], set[bytes]] = {}
    said: set[object] = set()
    monkeypatch.setattr(hashlib, "pbkdf2_hmac", counted)
    for user in ("bert", "nobody"):
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            for _ in range(2):
                with guarded.connect(PLAIN) as wire:
                    first = HandshakeRequest(
                        mechanism=mechanism, data=f"n,,n={user},r=abc".encode()
                    )
                    answer = wire.call(Api.HANDSHAKE, first, HandshakeResponse)
                nonce, salt, iterations = answer.data.split(b",")
                salts.setdefault((user, mechanism), set()).add(salt)
                said.add((len(nonce), len(salt), iterations, answer.goes_on))
            with pytest.raises(AuthenticationError) as met:
                guess(guarded, user, mechanism)
            said.add(str(met.value))
    assert derived == 0
    assert len(said) == 2
    assert all(len(each) == 1 for each in salts.values()), "asked again, it is the same"
    assert len({salt for each in salts.values() for salt in each}) == 4, "of each mechanism its own"


def test_many_guesses_at_once_are_not_tried_beyond_the_limit(guarded: Guarded) -> None:
    """Thirty connections are asked for a proof before any has given one; the last gives a right
    one, which is not told apart."""
    wires = [guarded.connect(PLAIN) for _ in range(30)]
    pending = []
    for wire in wires:
        login = password_of("bert", PASSWORD if wire is wires[-1] else "a wrong guess")
        exchange = login.begin()
        request = HandshakeRequest(mechanism=exchange.mechanism, data=exchange.first())
        answer = wire.call(Api.HANDSHAKE, request, HandshakeResponse)
        request.data = exchange.answer(answer.data, goes_on=True) or b""
        pending.append(request)
    said = []
    for wire, request in zip(wires, pending, strict=True):
        with wire, pytest.raises(AuthenticationError) as met:
            wire.call(Api.HANDSHAKE, request, HandshakeResponse)
        said.append("Too many" in str(met.value))
    assert said[:5] == [False] * 5
    assert all(said[10:])


def test_who_waits_gets_in_though_it_has_tried_meanwhile(guarded: Guarded) -> None:
    while "Too many" not in outcome(guarded, password_of("bert", "a wrong guess")):
        pass
    # Each of these tries is refused unseen, and counts for nothing: so the allowance fills up.
    wait_until(lambda: outcome(guarded, password_of("bert")) == "in")


def test_local_processes_are_limited_by_their_user(guarded: Guarded) -> None:
    for _ in range(8):
        if "Too many" in outcome(guarded, password_of("bert", "a wrong guess"), UNIX):
            break
    else:
        raise AssertionError("it was never limited")
    limits = authentication_of(guarded).limits
    assert any(f"user {os.geteuid()}" in key for key in limits._by_address._buckets)


def test_another_password_ends_what_began_with_the_old_one(guarded: Guarded) -> None:
    grant = Grant("topic", "t", ("read", "describe"))
    token = guarded.give_token("anna", grant)
    holder = TokenLogin(get=lambda: token)
    users = UserRegistry(guarded.session)
    with guarded.connect(PLAIN) as wire, guarded.connect(PLAIN) as task:
        log_in(wire, password_of("anna"))
        log_in(task, holder)
        assert may_ask(wire)
        assert may_ask(task)
        users.set_password("anna", "quite another one", now_us=2)
        wait_until(lambda: outcome(guarded, password_of("anna", "quite another one")) == "in")
        assert not may_ask(wire)
        assert not may_ask(task)
    assert "another password" in outcome(guarded, holder)
    assert outcome(guarded, password_of("anna")) == "The user or the password is wrong."
    with guarded.connect(PLAIN) as wire:
        log_in(wire, password_of("anna", "quite another one"))
        assert may_ask(wire)


def test_a_user_of_the_same_name_is_another_one(guarded: Guarded) -> None:
    """Gives one who is removed and added again neither the connections nor the tokens of before."""
    token = guarded.give_token("anna", Grant("topic", "t", ("read",)))
    users = UserRegistry(guarded.session)
    with guarded.connect(PLAIN) as wire:
        log_in(wire, password_of("anna"))
        mark = state_of(guarded)._marks["anna"]
        users.remove("anna")
        users.add("anna", PASSWORD, now_us=3)
        wait_until(lambda: state_of(guarded)._marks.get("anna", mark) != mark)
        assert not may_ask(wire)
    assert outcome(guarded, TokenLogin(get=lambda: token)) != "in"
    assert outcome(guarded, password_of("anna")) == "in"


def test_a_rule_that_goes_before_a_fetch_waits_ends_it_too(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rules change after the request was checked, and before it begins to wait."""
    security = guarded.broker._security
    assert security is not None
    authorization, check = security.authorization, security.authorization.check

    def check_late(*arguments: Any) -> None:
        check(*arguments)
        monkeypatch.undo()
        RuleRegistry(guarded.session).remove([Rule("topic", "t", "user:anna", "all")])
        wait_until(lambda: len(state_of(guarded).rules.rules) == 1)

    with guarded.connect(PLAIN) as wire:
        log_in(wire, password_of("anna"))
        monkeypatch.setattr(authorization, "check", check_late)
        with pytest.raises(NotAuthorizedError, match="may not read the topic t"):
            wire.call(Api.FETCH, fetch_request("t", 0, 0, wait_ms=60_000), FetchResponse)


def test_what_was_allowed_when_it_began_is_answered_by_what_became_of_it(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append is on the disk; that the rule goes before its answer does not make it undone."""
    security = guarded.broker._security
    assert security is not None
    authorization, check = security.authorization, security.authorization.check

    def check_once(*arguments: Any) -> None:
        check(*arguments)
        monkeypatch.undo()
        RuleRegistry(guarded.session).remove([Rule("topic", "t", "user:anna", "all")])
        wait_until(lambda: len(state_of(guarded).rules.rules) == 1)

    data = record_batch()
    with guarded.connect(PLAIN) as wire:
        log_in(wire, password_of("anna"))
        monkeypatch.setattr(authorization, "check", check_once)
        assert wire.append("t", 0, data).results[0].base_offset == 0
        with pytest.raises(NotAuthorizedError):
            wire.call(Api.APPEND, append_request("t", 0, data), FetchResponse, data)


def test_tokens_of_brokers_are_for_the_moment_in_which_they_connect(guarded: Guarded) -> None:
    """Connections between brokers stand for weeks; a token that is shown when it is over is not
    taken."""
    state, security = state_of(guarded), guarded.broker._security
    assert security is not None
    now_us = guarded.broker._clock.now_us()
    soon = state.token(lambda key: Claims(key, "broker:7", now_us + 3_000_000))
    with guarded.connect(PLAIN) as wire:
        log_in(wire, TokenLogin(get=lambda: soon))
        wait_until(lambda: guarded.broker._clock.now_us() > now_us + 3_500_000)
        assert may_ask(wire)
    assert "expired" in outcome(guarded, TokenLogin(get=lambda: soon))


def test_metrics_count_logins_and_denials_and_tell_when_certificates_expire(
    guarded: Guarded,
) -> None:
    for login in (password_of("anna"), password_of("anna", "a wrong guess")):
        outcome(guarded, login)
    with guarded.connect(PLAIN) as wire:
        log_in(wire, password_of("anna"))
        with pytest.raises(NotAuthorizedError):
            wire.call(Api.FETCH, fetch_request("other", 0, 0), FetchResponse)
    with pytest.raises(AuthenticationError), guarded.connect(TLS) as wire:
        log_in(wire, None)
    found = metrics_of(guarded)
    logins = 'logbus_logins_total{mechanism="%s",outcome="%s"}'
    assert found[logins % ("SCRAM-SHA-256", "succeeded")] >= 2
    assert found[logins % ("SCRAM-SHA-256", "failed")] == 1
    assert found[logins % ("none", "failed")] == 1
    assert found['logbus_denials_total{api="fetch"}'] == 1
    assert found['logbus_denials_total{api="append"}'] == 0
    left_s = found["logbus_tls_certificate_expiry_seconds"]
    assert 20 * 3600 < left_s <= 24 * 3600
    guarded.authority.files("broker", "127.0.0.1", days=9)
    expiry = "logbus_tls_certificate_expiry_seconds"
    wait_until(lambda: metrics_of(guarded)[expiry] > 8 * 24 * 3600)


def metrics_of(guarded: Guarded) -> dict[str, float]:
    port = (guarded.broker.config.data_dir / "metrics.port").read_text().strip()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
        lines = [each for each in page.read().decode().splitlines() if not each.startswith("#")]
    return {name: float(value) for name, _, value in (each.rpartition(" ") for each in lines)}


def test_the_audit_log_says_what_changed_and_nobody_forges_its_lines(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    forged = 'x\n{"event": "asked", "principal": "user:admin"}\u2028\r'
    told = ("rules changed", '"added"', '"altered"')

    def lines() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.name == "logbus.audit"]

    with caplog.at_level(logging.INFO, "logbus.audit"):
        UserRegistry(guarded.session).add("new", PASSWORD, now_us=5)
        UserRegistry(guarded.session).set_password("anna", PASSWORD, now_us=6)
        RuleRegistry(guarded.session).remove([Rule("topic", "t", "user:bert", "all")])
        with pytest.raises(LogbusError):
            guess(guarded, forged.replace(",", "=2C").replace("=", "=3D"))
        with guarded.connect(PLAIN) as wire:
            log_in(wire, password_of("bert"))
            with pytest.raises(NotAuthorizedError):
                wire.call(Api.FETCH, fetch_request(forged * 2_000, 0, 0), FetchResponse)
        with pytest.raises(AuthenticationError), guarded.connect(PLAIN) as wire:
            log_in(wire, None)
        # Of the records themselves: what formats them is set by whoever configures the log.
        wait_until(lambda: all(any(what in line for line in lines()) for what in told))
    assert not [each for each in lines() if len(each.splitlines()) != 1 or len(each) > 5_000]
    events = [json.loads(each) for each in lines()]
    assert all(each.pop("ts").endswith("Z") for each in events)
    users = [each for each in events if each["event"] == "users changed"]  # one line, or two
    assert [each["added"] for each in users if "added" in each] == [["new"]]
    assert [each["altered"] for each in users if "altered" in each] == [["anna"]]
    assert {
        "event": "rules changed",
        "removed": ["user:bert may do anything with topic t"],
    } in events
    assert [each["principal"] for each in events if each["event"] == "denied"] == ["user:bert"]
    assert "none" in {each["mechanism"] for each in events if each["event"] == "login failed"}
    assert PASSWORD not in caplog.text
