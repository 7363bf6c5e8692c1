"""Tokens and logins by password: nothing but what was given and known is a proof."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from spark_logbus.errors import AuthenticationError, ConfigError, ProtocolError
from spark_logbus.security import scram
from spark_logbus.security.tokens import MAX_TOKEN_BYTES, Claims, Grant, new_key, sign, verify

KEYS = {1: new_key(), 2: new_key()}
NOW_US = 1_000_000
TOKEN = sign(
    Claims(2, "user:anna", 2 * NOW_US, [Grant("topic", "t*", ("read",))], b"mark"), KEYS[2]
)
PASSWORD = "a password of hers"
CREDENTIALS = scram.new_credentials(PASSWORD)
MECHANISM = "SCRAM-SHA-256"


def find(user: str, mechanism: str) -> scram.Credential | None:
    return CREDENTIALS[mechanism] if user == "anna" else None


def server() -> scram.ServerExchange:
    return scram.ServerExchange(MECHANISM, find, secret=b"s" * 32)


def test_a_token_as_it_was_given_is_a_proof() -> None:
    principal, _, mark = verify(TOKEN, KEYS, now_us=NOW_US)
    assert (str(principal), mark) == ("user:anna", b"mark")


@given(st.binary(max_size=MAX_TOKEN_BYTES + 10))
def test_no_other_bytes_are_a_token(data: bytes) -> None:
    with pytest.raises(AuthenticationError):
        verify(data, KEYS, now_us=NOW_US)


@given(
    start=st.integers(0, len(TOKEN)),
    count=st.integers(0, len(TOKEN)),
    instead=st.binary(max_size=40),
    now_us=st.integers(0, 4 * NOW_US),
)
def test_no_change_of_a_token_is_a_proof(
    start: int, count: int, instead: bytes, now_us: int
) -> None:
    changed = TOKEN[:start] + instead + TOKEN[start + count :]
    assume(changed != TOKEN)
    with pytest.raises(AuthenticationError):
        verify(changed, KEYS, now_us=now_us)


@given(key=st.binary(min_size=1, max_size=64), now_us=st.integers(0, NOW_US))
def test_no_other_key_signs(key: bytes, now_us: int) -> None:
    assume(key not in KEYS.values())
    forged = sign(Claims(1, "broker:1", 2 * NOW_US), key)
    with pytest.raises(AuthenticationError):
        verify(forged, KEYS, now_us=now_us)


@given(st.lists(st.binary(max_size=300) | st.text(max_size=300).map(str.encode), max_size=4))
def test_no_messages_that_know_nothing_end_a_login(messages: list[bytes]) -> None:
    exchange = server()
    for message in messages:
        try:
            _, is_done = exchange.answer(message)
        except (AuthenticationError, ProtocolError):
            return
        assert not is_done


@given(first=st.booleans(), start=st.integers(0, 200), count=st.integers(0, 40),
       instead=st.binary(max_size=20))  # fmt: skip
def test_no_change_of_a_message_is_a_proof(
    first: bool, start: int, count: int, instead: bytes
) -> None:
    """A changed first message is none with a proof that was made of the one that was meant."""
    client, exchange = scram.ClientExchange(MECHANISM, "anna", PASSWORD), server()

    def changed(message: bytes) -> bytes:
        at = start % len(message)
        return message[:at] + instead + message[at + count :]

    sent = client.first()
    received = changed(sent) if first else sent
    try:
        answer, _ = exchange.answer(received)
        last = client.final(answer)
        received_last = last if first else changed(last)
        assume((received, received_last) != (sent, last))
        exchange.answer(received_last)
    except (AuthenticationError, ProtocolError):
        return
    raise AssertionError(f"{received!r}, {received_last!r} in place of {sent!r}, {last!r}")


@given(st.text(min_size=8, max_size=40))
def test_other_passwords_are_none(password: str) -> None:
    try:
        client = scram.ClientExchange(MECHANISM, "anna", password)
    except ConfigError:
        return  # it has characters that no password has
    assume(password != PASSWORD)
    exchange = server()
    answer, _ = exchange.answer(client.first())
    with pytest.raises(AuthenticationError):
        exchange.answer(client.final(answer))
