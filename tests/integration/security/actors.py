"""Principals of every kind at a guarded broker, their connections, and what each of them may do.

What an actor may do is said here a second time, in words of its own: not by the code under test.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from spark_logbus.broker import Broker, SecurityConfig, TlsConfig
from spark_logbus.coordination.security.access_rules import RuleRegistry
from spark_logbus.coordination.security.users import UserRegistry
from spark_logbus.errors import LogbusError
from spark_logbus.protocol import (
    Api,
    HandshakeRequest,
    HandshakeResponse,
    IssueTokenRequest,
    IssueTokenResponse,
)
from spark_logbus.security.acls import Rule
from spark_logbus.security.logins import Login, PasswordLogin, TokenLogin
from spark_logbus.security.tokens import Grant
from spark_logbus.zookeeper import Session
from tests.helpers import wait_until
from tests.servers.broker import broker_here, create_topic
from tests.servers.certificates import Authority
from tests.servers.wire import Wire

OPERATIONS = ("read", "write", "create", "alter", "delete", "describe")
IMPLY_DESCRIBE = ("read", "write", "alter", "delete")
#: The topic, the writer and the cluster that rules are about; "other" is a topic beside it.
NAMES = {"topic": "t", "writer": "w", "cluster": "*"}
OTHER = "other"
PLAIN, TLS, UNIX = "plain", "TLS", "UNIX socket"
LISTENERS = (PLAIN, TLS, UNIX)
PASSWORD = "the same for all of them"
NOBODY_UID = 65_534

_PASS_A_SOCKET = """
import socket, sys
channel = socket.socket(fileno=int(sys.argv[1]))
sock = socket.socket(socket.AF_UNIX)
sock.connect("\\0" + sys.argv[2])
socket.send_fds(channel, [b"x"], [sock.fileno()])
"""

May = Callable[[str, str, str], bool]


def nothing(operation: str, kind: str, name: str) -> bool:
    return False


def everything(operation: str, kind: str, name: str) -> bool:
    return True


def on_names(operations: tuple[str, ...]) -> May:
    """Allows those operations, and what they imply, on what rules are about."""

    def may(operation: str, kind: str, name: str) -> bool:
        implied = operation == "describe" and any(each in IMPLY_DESCRIBE for each in operations)
        return name == NAMES[kind] and (operation in operations or implied)

    return may


def all_but(denied: str) -> May:
    """Allows everything but one operation on what rules are about."""

    def may(operation: str, kind: str, name: str) -> bool:
        return operation != denied or name != NAMES[kind]

    return may


def with_prefix(operation: str, kind: str, name: str) -> bool:
    return kind == "cluster" or name.startswith(NAMES[kind])


@dataclass(frozen=True)
class Actor:
    """A principal, and how it gets in. ``principal`` None: it does not get in at all."""

    name: str
    principal: str | None
    may: May
    listeners: tuple[str, ...] = LISTENERS
    is_broker: bool = False
    has_token: bool = False


@dataclass
class Guarded:
    """A broker that lets known principals do what rules allow, on three listeners; topics t and
    other."""

    broker: Broker
    session: Session
    authority: Authority
    actors: dict[str, Actor] = field(default_factory=dict)
    tokens: dict[str, bytes] = field(default_factory=dict)

    def connect(self, listener: str) -> Wire:
        """Connects, and shakes no hands but those of TLS."""
        address = self.broker.address
        if listener == UNIX:
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(f"\0{address.local_socket}")
            return Wire(sock)
        if listener == PLAIN:
            return Wire(socket.create_connection((address.host, address.port), timeout=60))
        return self.connect_by_tls()

    def connect_by_tls(self, certificate: str | None = None) -> Wire:
        context = ssl.create_default_context(cadata=self.authority.ca)
        if certificate is not None:
            files = self.authority.files(certificate)
            context.load_cert_chain(files.certificate, files.key)
        address = self.broker.address
        assert address.tls_port is not None
        sock = socket.create_connection((address.host, address.tls_port), timeout=60)
        return Wire(context.wrap_socket(sock, server_hostname=address.host))

    def connect_as_nobody(self) -> Wire:
        """Connects to the UNIX socket from a process of another user, and takes the socket over."""
        ours, theirs = socket.socketpair()
        address = self.broker.address
        with ours, theirs:
            subprocess.run(
                [shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable, "-c",
                 _PASS_A_SOCKET, str(theirs.fileno()), str(address.local_socket)],
                user=NOBODY_UID, pass_fds=[theirs.fileno()], check=True, timeout=60,
                cwd="/", env={},
            )  # fmt: skip
            _, [descriptor], _, _ = socket.recv_fds(ours, 1, 1)
        return Wire(socket.socket(fileno=descriptor))

    def enter(self, actor: Actor, listener: str) -> Wire:
        """Connects as the actor and logs in; an actor that does not get in is refused first."""
        if actor.name == "certificate:all" or actor.name == "certificate:none":
            wire = self.connect_by_tls(actor.name.removeprefix("certificate:"))
        elif actor.name == "local:nobody":
            wire = self.connect_as_nobody()
        else:
            wire = self.connect(listener)
        if actor.principal is None:
            with contextlib.suppress(LogbusError):
                log_in(wire, None)
        else:
            log_in(wire, self.login(actor))
        return wire

    def login(self, actor: Actor) -> Login | None:
        if actor.is_broker:
            security = self.broker._security
            assert security is not None
            return security.login()
        if actor.has_token:
            return TokenLogin(get=lambda: self.tokens[actor.name])
        if actor.principal is not None and actor.principal.startswith("user:"):
            return password_of(actor.principal.removeprefix("user:"))
        return None

    def add(self, name: str, principal: str | None, may: May, *rules: Rule, **more: object) -> None:
        self.actors[name] = Actor(name, principal, may, **more)  # type: ignore[arg-type]
        if rules:
            RuleRegistry(self.session).add(rules)

    def give_token(self, owner: str, *grants: Grant, lifetime_ms: int = 600_000) -> bytes:
        with self.connect(PLAIN) as wire:
            log_in(wire, password_of(owner))
            request = IssueTokenRequest(grants=list(grants), lifetime_ms=lifetime_ms)
            return wire.call(Api.ISSUE_TOKEN, request, IssueTokenResponse).token


def password_of(user: str, password: str = PASSWORD) -> PasswordLogin:
    return PasswordLogin(user=user, password=password, mechanism="SCRAM-SHA-256")


def log_in(wire: Wire, login: Login | None) -> None:
    """Shakes hands; raises what the broker answers."""
    exchange = None if login is None else login.begin()
    request = HandshakeRequest(client_id="actor")
    if exchange is not None:
        request.mechanism, request.data = exchange.mechanism, exchange.first()
    while True:
        answer = wire.call(Api.HANDSHAKE, request, HandshakeResponse)
        if exchange is None:
            return
        data = exchange.answer(answer.data, goes_on=answer.goes_on)
        if data is None:
            return
        request.data = data


def rules_for(principal: str, operation: str, *, allow: bool = True) -> list[Rule]:
    return [Rule(kind, name, principal, operation, allow) for kind, name in NAMES.items()]


def rules_for_all(principal: str) -> list[Rule]:
    return [Rule(kind, "*", principal, "all") for kind in NAMES]


@contextlib.contextmanager
def guarded_broker(directory: Path, zookeeper: str) -> Iterator[Guarded]:
    """A guarded broker, to which nobody is known yet but the user ``admin``, whom no rule binds."""
    authority = Authority(directory / "ca")
    files = authority.files("broker", "127.0.0.1")
    with Session(zookeeper, client_name="test") as session:
        UserRegistry(session).add("admin", PASSWORD, now_us=1)
        with broker_here(
            directory / "broker",
            zookeeper,
            security=SecurityConfig(
                authenticate=True, authorize=True, super_principals=["user:admin"]
            ),
            tls=TlsConfig(
                certificate=files.certificate,
                key=files.key,
                port=0,
                client_ca=authority.ca_file,
                client_certificates="optional",
            ),
        ) as broker:
            guarded = Guarded(broker, session, authority)
            with guarded.connect(PLAIN) as wire:
                log_in(wire, password_of("admin"))
                for topic in (NAMES["topic"], OTHER):
                    create_topic(wire, topic)
            yield guarded


def add_all(guarded: Guarded, *, is_root: bool) -> None:
    """Adds an actor for each way to be known and each state of the rules, and waits until the
    broker knows them."""
    users, add = UserRegistry(guarded.session), guarded.add
    add("anonymous", None, nothing, listeners=(PLAIN, TLS))
    add("admin", "user:admin", everything)
    add("none", "user:none", nothing)
    add("all", "user:all", everything, *rules_for_all("user:all"))
    prefixes = {**NAMES, "topic": "t*", "writer": "w*"}
    add("prefix", "user:prefix", with_prefix,
        *(Rule(kind, name, "user:prefix", "all") for kind, name in prefixes.items()))  # fmt: skip
    for each in OPERATIONS:
        others = tuple(other for other in OPERATIONS if other != each)
        add(f"only-{each}", f"user:only-{each}", on_names((each,)),
            *rules_for(f"user:only-{each}", each))  # fmt: skip
        add(f"denied-{each}", f"user:denied-{each}", all_but(each),
            *rules_for_all(f"user:denied-{each}"),
            *rules_for(f"user:denied-{each}", each, allow=False))  # fmt: skip
        add(f"except-{each}", f"user:except-{each}", on_names(others),
            *(rule for other in others
              for rule in rules_for(f"user:except-{each}", other)))  # fmt: skip
    add("certificate:all", "certificate:all", everything, *rules_for_all("certificate:all"),
        listeners=(TLS,))  # fmt: skip
    add("certificate:none", "certificate:none", nothing, listeners=(TLS,))
    add("local", "local", everything, listeners=(UNIX,))  # who runs the broker
    if is_root:
        add("local:nobody", "local:nobody", on_names(("read",)),
            *rules_for("local:nobody", "read"), listeners=(UNIX,))  # fmt: skip
    add("broker", "broker:1", everything, is_broker=True)
    for name in [*guarded.actors]:
        principal = guarded.actors[name].principal
        if principal is not None and principal.startswith("user:") and name != "admin":
            users.add(name, PASSWORD, now_us=1)
    state = guarded.broker._security
    assert state is not None
    known = state.state
    wanted = {*RuleRegistry(guarded.session).all().rules}
    wait_until(lambda: {*known.rules.rules} == wanted and len(known.users) == len(users.names()))
    for each in OPERATIONS:
        grants = [Grant(kind, name, (each, "describe")) for kind, name in NAMES.items()]
        guarded.tokens[f"token-{each}"] = guarded.give_token("all", *grants)
        add(f"token-{each}", "user:all", on_names((each, "describe")), has_token=True)
    outside = Grant("topic", "elsewhere*", OPERATIONS)
    guarded.tokens["token-outside"] = guarded.give_token("all", outside)
    add("token-outside", "user:all", nothing, has_token=True)
    whole = [Grant(kind, "*", OPERATIONS) for kind in NAMES]
    guarded.tokens["token-of-none"] = guarded.give_token("none", *whole)
    add("token-of-none", "user:none", nothing, has_token=True)
