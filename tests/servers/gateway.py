"""Brokers with gateways for tests, and profiles of those who use them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from spark_logbus.broker import Broker, GatewayConfig, SecurityConfig, TlsConfig
from spark_logbus.coordination.security.access_rules import RuleRegistry
from spark_logbus.coordination.security.users import UserRegistry
from spark_logbus.gateway.gateway import Gateway
from spark_logbus.security.acls import Rule
from spark_logbus.zookeeper import Session
from tests.helpers import wait_until
from tests.servers.broker import broker_here
from tests.servers.certificates import Authority

HOST = "127.0.0.1"


def password_of(user: str) -> str:
    return f"the password of {user}"


@dataclass
class Gated:
    """A cluster whose brokers have gateways; ``user:admin`` is bound by no rule. ``session`` is one
    with ZooKeeper itself."""

    directory: Path
    zookeeper: str
    session: Session
    authority: Authority
    brokers: list[Broker] = field(default_factory=list)
    gateways: dict[int, Gateway] = field(default_factory=dict)
    _written: dict[str, str] = field(default_factory=dict)

    @property
    def chroot(self) -> str:
        return self.session.connect.chroot

    @contextmanager
    def broker(self, broker_id: int, *, gateway: GatewayConfig | None = None) -> Iterator[Broker]:
        """A broker with a gateway, while it lasts."""
        files = self.authority.files(f"broker-{broker_id}", HOST)
        with broker_here(
            self.directory / f"broker-{broker_id}",
            self.zookeeper,
            broker_id=broker_id,
            tls=TlsConfig(
                certificate=files.certificate, key=files.key, port=0,
                client_ca=self.authority.ca_file, client_certificates="optional",
            ),
            security=SecurityConfig(
                authenticate=True, authorize=True, super_principals=["user:admin"]
            ),
            gateway=gateway or GatewayConfig(port=0),
            gateways=self.gateways,
        ) as broker:  # fmt: skip
            self.brokers.append(broker)
            yield broker
            self.brokers.remove(broker)

    @property
    def profiles(self) -> Path:
        return self.directory / "profiles.toml"

    def add_user(self, *names: str) -> None:
        for name in names:
            UserRegistry(self.session).add(name, password_of(name), now_us=1)
            for broker in self.brokers:
                wait_until(partial(_knows, broker, name))

    def profile(self, name: str, *, of: Broker | None = None, lines: str = "") -> str:
        """Writes a profile of the user of that name, at all gateways or that of one broker, and
        returns the address that names it."""
        brokers = self.brokers if of is None else [of]
        servers = ",".join(f"{HOST}:{each.gateway_port}" for each in brokers)
        secret = self.directory / f"{name}.password"
        secret.write_text(password_of(name))
        user = f'user = "{name}"\npassword_file = "{secret}"\n'
        title = name if of is None else f"{name}-{of.config.id}"
        self._written[title] = (
            f'[{title}]\ngateway = "{servers}{self.chroot}"\n'
            f'tls_ca = "{self.authority.ca_file}"\n{lines or user}'
        )
        self.profiles.write_text("".join(self._written.values()))
        self.profiles.chmod(0o600)
        return f"profile:{title}"

    def allow(self, principal: str, *grants: tuple[str, str, str]) -> None:
        """Adds rules, each of an operation, a kind and a name, and waits until they are known."""
        rules = [Rule(kind, name, principal, word, True) for word, kind, name in grants]
        RuleRegistry(self.session).add(rules)
        self._wait({*rules}, there=True)

    def forbid(self, principal: str, *grants: tuple[str, str, str]) -> None:
        """Takes rules away again."""
        rules = [Rule(kind, name, principal, word, True) for word, kind, name in grants]
        RuleRegistry(self.session).remove(rules)
        self._wait({*rules}, there=False)

    def _wait(self, rules: set[Rule], *, there: bool) -> None:
        for broker in self.brokers:
            wait_until(partial(_holds, broker, rules, there))

    def refused(self) -> int:
        """The number of requests that were refused at any gateway."""
        return sum(each.security.gateway.refused for each in self.brokers if each.security)


def _knows(broker: Broker, user: str) -> bool:
    assert broker.security is not None
    return user in broker.security.state.users


def _holds(broker: Broker, rules: set[Rule], there: bool) -> bool:
    assert broker.security is not None
    return rules & {*broker.security.state.rules.rules} == (rules if there else set())


@contextmanager
def gated(directory: Path, zookeeper: str, *, brokers: str = "") -> Iterator[Gated]:
    """A cluster without a broker as yet; ``brokers`` is the text of their own profile."""
    authority = Authority(directory / "authority")
    with Session(zookeeper, client_name="test") as session:
        found = Gated(directory, zookeeper, session, authority)
        found._written["brokers"] = brokers
        yield found
