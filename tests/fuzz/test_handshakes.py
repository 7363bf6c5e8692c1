"""Handshakes under fire: no order of messages, right and wrong ones, gets anybody in who has not
proved who it is.

A failure names the seed of its input: ``LOGBUS_FUZZ_SEED=<seed>`` begins there again.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from spark_logbus.coordination.security.token_keys import TokenKeys
from spark_logbus.coordination.security.users import UserRegistry
from spark_logbus.errors import AuthenticationError, InvalidRequestError, LogbusError, ProtocolError
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.protocol import (
    PROTOCOL_VERSION,
    Api,
    HandshakeRequest,
    HandshakeResponse,
    IssueTokenRequest,
    IssueTokenResponse,
    MetadataRequest,
    MetadataResponse,
    frame_head,
)
from spark_logbus.security import scram
from spark_logbus.security.logins import Exchange, PasswordLogin
from spark_logbus.security.tokens import Claims, sign
from spark_logbus.zookeeper import Session
from tests.builders.hostile_values import OTHERS, TEXTS
from tests.servers.broker import broker_process
from tests.servers.peers import resident_mib
from tests.servers.wire import EndedError, Wire

SECONDS = float(os.environ.get("LOGBUS_FUZZ_SECONDS", "600"))
FIRST = int(os.environ.get("LOGBUS_FUZZ_SEED", random.SystemRandom().randrange(1 << 40)))
SMOKE_S = 4.0
FEWEST_INPUTS = 100
PASSWORD = "the right password"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "TOKEN", "", "PLAIN", "SCRAM-SHA-256-PLUS",
              "scram-sha-256", "x" * 3_000, "\0", "EXTERNAL")  # fmt: skip


@dataclass
class Target:
    """A broker that asks who connects, and what a good client of it has."""

    broker: BrokerProcess
    token: bytes
    keys: dict[int, bytes] = field(repr=False, default_factory=dict)


@pytest.fixture(scope="module")
def target(
    tmp_path_factory: pytest.TempPathFactory, new_chroot: Callable[[], str]
) -> Iterator[Target]:
    zookeeper = new_chroot()
    with Session(zookeeper, client_name="test") as session:
        users = UserRegistry(session)
        for user in ("anna", "carl"):
            users.add(user, PASSWORD, now_us=1)
        settings: dict[str, dict[str, Any]] = {
            "security": {"authenticate": True},
            # What is under way of logins that nobody goes on with ends soon.
            "network": {"stall_timeout_ms": 5_000, "max_connections_per_address": 40},
        }
        directory = tmp_path_factory.mktemp("handshakes")
        with broker_process(directory, zookeeper, settings=settings) as broker:
            with connect(broker) as wire:
                finish(wire, PasswordLogin(user="carl", password=PASSWORD).begin())
                asked = IssueTokenRequest(grants=[], lifetime_ms=86_400_000)
                token = wire.call(Api.ISSUE_TOKEN, asked, IssueTokenResponse).token
            keys = TokenKeys(session).renew(now_us=time.time_ns() // 1000)
            yield Target(broker, token, {number: each.key for number, each in keys.keys.items()})


def connect(broker: BrokerProcess) -> Wire:
    return Wire.to(broker.address, shake_hands=False)


def shake(wire: Wire, mechanism: str, data: bytes) -> HandshakeResponse:
    return wire.call(
        Api.HANDSHAKE, HandshakeRequest("fuzzer", mechanism=mechanism, data=data), HandshakeResponse
    )


def finish(wire: Wire, exchange: Exchange) -> None:
    data: bytes | None = exchange.first()
    while data is not None:
        answer = shake(wire, exchange.mechanism, data)
        data = exchange.answer(answer.data, goes_on=answer.goes_on)


def is_in(wire: Wire) -> bool:
    try:
        wire.call(Api.METADATA, MetadataRequest([]), MetadataResponse)
    except InvalidRequestError:  # "The first request of a connection must be a handshake."
        return False
    return True


class Attempt:
    """One connection, and whether whoever is behind it has proved who it is by now."""

    def __init__(self, target: Target, wire: Wire, dice: random.Random) -> None:
        self._target = target
        self._wire = wire
        self._dice = dice
        self._exchange: Exchange | None = None
        self._next: bytes | None = None
        self.proved = False

    def step(self) -> None:
        steps = [self._anything, self._begin, self._go_on, self._go_on, self._go_on, self._token,
                 self._forged_token, self._request, self._changed_message]  # fmt: skip
        try:
            self._dice.choice(steps)()
        except LogbusError:
            self._exchange = None
        assert is_in(self._wire) == self.proved

    def _send(self, mechanism: str, data: bytes) -> HandshakeResponse:
        answer = shake(self._wire, mechanism, data)
        assert not self.proved, "the second login of a connection"
        return answer

    def _anything(self) -> None:
        """Sends a message of no login at all."""
        self._exchange = None
        tree = {
            "mechanism": self._dice.choice((*MECHANISMS, *TEXTS)),
            "data": self._dice.choice((b"", self._dice.randbytes(40), b"n,,n=anna,r=x", *OTHERS)),
            "protocol_version": self._dice.choice((PROTOCOL_VERSION, 0, 1 << 30)),
        }
        try:
            header = msgspec.msgpack.encode(tree)
        except (OverflowError, UnicodeEncodeError, TypeError):
            return
        if len(header) > 4_000:  # a frame too large ends the connection
            return
        self._wire._correlation += 1
        head = frame_head(api=Api.HANDSHAKE, version=PROTOCOL_VERSION,
                          correlation=self._wire._correlation, header=header,
                          payload_length=0)  # fmt: skip
        self._wire.sock.sendall(head)
        self._wire.answer(Api.HANDSHAKE, HandshakeResponse)

    def _begin(self) -> None:
        mechanism = self._dice.choice(MECHANISMS[:2])
        login = PasswordLogin(user="carl", password=PASSWORD, mechanism=mechanism)
        self._exchange = None
        exchange = login.begin()
        answer = self._send(mechanism, exchange.first())
        self._next = exchange.answer(answer.data, goes_on=answer.goes_on)
        self._exchange = exchange

    def _go_on(self) -> None:
        if self._exchange is None or self._next is None:
            return self._begin()
        exchange, self._exchange = self._exchange, None
        answer = self._send(exchange.mechanism, self._next)
        assert exchange.answer(answer.data, goes_on=answer.goes_on) is None
        self.proved = True
        return None

    def _changed_message(self) -> None:
        """Sends the next message of a login with something changed in it, or by another name."""
        if self._exchange is None or self._next is None:
            exchange = PasswordLogin(user="anna", password="a wrong password").begin()
            mechanism, data = exchange.mechanism, exchange.first()
        else:
            mechanism, data = self._exchange.mechanism, self._next
        self._exchange = None
        if self._dice.random() < 0.2:
            mechanism = self._dice.choice([each for each in MECHANISMS if each != mechanism])
        else:
            data = changed(data, self._dice)
        answer = self._send(mechanism, data)
        assert answer.goes_on, "a changed message is no proof"

    def _token(self) -> None:
        self._exchange = None
        answer = self._send("TOKEN", self._target.token)
        assert not answer.goes_on
        self.proved = True

    def _forged_token(self) -> None:
        self._exchange = None
        kind, token = self._dice.randrange(4), self._target.token
        if kind == 0:
            token = changed(token, self._dice)
        elif kind == 1:
            claims = Claims(1, "user:carl", 1 << 60)
            token = sign(claims, self._dice.randbytes(32))
        elif kind == 2:  # signed by the right key, and over
            token = sign(Claims(1, "broker:1", 1), self._dice.choice([*self._target.keys.values()]))
        else:  # of a user that there is not
            token = sign(
                Claims(1, "user:nobody", 1 << 60), self._dice.choice([*self._target.keys.values()])
            )
        self._send("TOKEN", token)
        raise AssertionError("a token that nobody gave got in")

    def _request(self) -> None:
        """Asks for something in the middle of a login, which does not end it."""
        assert is_in(self._wire) == self.proved


def changed(data: bytes, dice: random.Random) -> bytes:
    """Returns something else than the data, but not by much."""
    found = bytearray(data)
    while bytes(found) == data:
        kind = dice.randrange(5)
        if kind == 0:
            found[dice.randrange(len(found))] ^= 1 << dice.randrange(8)
        elif kind == 1:
            found = found[: dice.randrange(len(found))]
        elif kind == 2:
            at = dice.randrange(len(found))
            found[at:at] = dice.choice((b",", b"=", b",m=x", b"\0", b"\xff", b"=2C", b"x" * 1_500))
        elif kind == 3:
            parts = bytes(found).split(b",")
            dice.shuffle(parts)
            found = bytearray(b",".join(parts))
        else:
            at = dice.randrange(len(found))
            del found[at : at + dice.randint(1, 8)]
    return bytes(found)


def under_fire(target: Target, *, seconds: float, first: int) -> None:
    before = resident_mib(target.broker.pid)
    outcomes: Counter[str] = Counter()
    seed, end = first, time.monotonic() + seconds
    while time.monotonic() < end or outcomes.total() < FEWEST_INPUTS:
        dice = random.Random(seed)
        try:
            with connect(target.broker) as wire:
                attempt = Attempt(target, wire, dice)
                try:
                    for _ in range(dice.randint(1, 6)):
                        attempt.step()
                    outcomes["proved" if attempt.proved else "refused"] += 1
                except (OSError, EndedError):
                    outcomes["ended"] += 1
        except BaseException as failure:
            failure.add_note(f"Begin there again with LOGBUS_FUZZ_SEED={seed}.")
            raise
        seed += 1
    assert {"proved", "refused"} <= outcomes.keys(), outcomes
    with connect(target.broker) as wire:
        shake(wire, "TOKEN", target.token)
        assert is_in(wire)
    assert target.broker.running
    assert resident_mib(target.broker.pid) - before < 50
    told = target.broker.log_file.read_text()
    assert "unexpectedly" not in told
    assert "foreseen" not in told
    assert PASSWORD not in told


def test_no_order_of_messages_gets_anybody_in_unproved(target: Target) -> None:
    under_fire(target, seconds=SMOKE_S, first=0)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_no_order_of_messages_gets_anybody_in_unproved_at_length(target: Target) -> None:
    under_fire(target, seconds=SECONDS, first=FIRST)


def exchange_with(message: bytes, dice: random.Random) -> str:
    """Gives a message to a login of a broker; says in a word what became of it."""
    credentials = {"SCRAM-SHA-256": CREDENTIAL}
    server = scram.ServerExchange(
        "SCRAM-SHA-256", lambda user, name: credentials.get(name), secret=b"s" * 32
    )
    try:
        server.answer(message)
        server.answer(changed(message, dice) if dice.random() < 0.5 else b"c=biws,r=x,p=eA==")
    except AuthenticationError:
        return "refused"
    except ProtocolError:
        return "no message"
    raise AssertionError("a proof that nobody gave")


CREDENTIAL = scram.Credential(
    salt=b"salt" * 4, iterations=4_096, stored_key=b"k" * 32, server_key=b"s" * 32
)


def test_messages_of_no_login_are_refused_by_typed_errors() -> None:
    outcomes: Counter[str] = Counter()
    first = PasswordLogin(user="anna", password=PASSWORD, mechanism="SCRAM-SHA-256").begin().first()
    for seed in range(3_000):
        dice = random.Random(seed)
        message = changed(first, dice) if dice.random() < 0.9 else dice.randbytes(60)
        outcomes[exchange_with(message, dice)] += 1
    assert {"refused", "no message"} <= outcomes.keys()
