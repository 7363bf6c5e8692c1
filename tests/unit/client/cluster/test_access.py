"""Tokens for tasks: kept as long as they are young, shown when they are the newest."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from spark_logbus.client import Bootstrap, ClientConfig
from spark_logbus.client.cluster.access import TOKEN_MS, Access, ShownToken, Token, TokenSource
from spark_logbus.errors import AuthenticationError
from spark_logbus.protocol import HandshakeRequest, IssueTokenResponse
from spark_logbus.security.logins import PasswordLogin
from spark_logbus.security.scram import new_credentials
from spark_logbus.security.tls import ClientTls
from spark_logbus.security.tokens import Grant, grants_on_topics
from tests.fakes.clock import ManualClock

HOUR_S = 3_600.0
T, U = grants_on_topics(["t"], ("read",)), grants_on_topics(["u"], ("read",))


class Issuer:
    """Gives tokens that are numbered, for 12 hours, as a broker that bounds them does."""

    def __init__(self) -> None:
        self.given = 0

    def __call__(self, grants: tuple[Grant, ...], lifetime_ms: int) -> IssueTokenResponse:
        assert lifetime_ms == TOKEN_MS
        self.given += 1
        return IssueTokenResponse(b"%d" % self.given, 12 * 3_600_000, self.given, grants[0].name)


def test_a_token_is_asked_for_anew_when_a_third_of_its_time_has_passed() -> None:
    clock, issuer = ManualClock(), Issuer()
    source = TokenSource(issuer, clock)
    first = source.get(T)
    assert first is not None
    assert source.get(T) is first
    assert source.get(U) != first, "each is for its topics"
    clock.advance(3.9 * HOUR_S)
    assert source.get(T) is first
    clock.advance(0.2 * HOUR_S)
    second = source.get(T)
    assert second == first, "of the same scope"
    assert second is not None
    assert (second.value, issuer.given) == (b"3", 3)


def test_a_clock_that_was_set_back_does_not_keep_a_token() -> None:
    clock, issuer = ManualClock(), Issuer()
    source = TokenSource(issuer, clock)
    source.get(T)
    clock.jump(-1)
    source.get(T)
    assert issuer.given == 2


def test_no_token_is_kept_where_nobody_asks() -> None:
    source = TokenSource(lambda *_: IssueTokenResponse(b"", 1_000), ManualClock())
    assert source.get(T) is None


def test_the_token_that_lasts_longest_is_shown() -> None:
    first, second = Token(b"1", 10, "of t"), Token(b"2", 20, "of t")
    shown = ShownToken(Access(token=first))
    shown.take(Access(token=second))
    assert shown.get() == b"2"
    shown.take(Access(token=first))
    assert shown.get() == b"2", "a task that is repeated has an older one"
    shown.take(Access(token=Token(b"3", 30, "of u")))
    assert shown.get() == b"2", "of another scope"
    shown.take(None)
    shown.take(Access())
    assert shown.get() == b"2"
    with pytest.raises(AuthenticationError, match="handed no token"):
        ShownToken(None).get()


def test_addresses_are_equal_where_connections_are_as_good() -> None:
    plain = Bootstrap.of("h:1")
    tls = ClientTls(ca="an authority")
    first = replace(plain, access=Access(tls, Token(b"1", 10, "of t")))
    renewed = replace(plain, access=Access(tls, Token(b"2", 20, "of t")))
    assert (first, hash(first)) == (renewed, hash(renewed))
    others = [
        plain,
        replace(plain, access=Access(tls)),
        replace(plain, access=Access(tls, Token(b"1", 10, "of u"))),
        replace(plain, access=Access(ClientTls(ca="another"), Token(b"1", 10, "of t"))),
    ]
    assert len({first, *others}) == len(others) + 1


def test_nothing_that_is_secret_is_shown() -> None:
    secret = b"CANARY"
    access = Access(ClientTls(ca="text"), Token(secret, 10, "of t"))
    login = PasswordLogin(user="anna", password="CANARY")
    shown = [
        access,
        replace(Bootstrap.of("h:1"), access=access),
        login,
        ClientConfig(login=login),
        ClientConfig(login=login).connections,
        HandshakeRequest(mechanism="TOKEN", data=secret),
        IssueTokenResponse(secret, 1_000),
    ]
    assert not [each for each in shown if "CANARY" in f"{each!r} {each!s} {[each]}"]
    credential = new_credentials("a password")["SCRAM-SHA-256"]
    for each in (credential.stored_key, credential.server_key, credential.salt):
        assert repr(each) not in repr(credential)
    assert secret in pickle.dumps(access), "or tasks would not have it"
