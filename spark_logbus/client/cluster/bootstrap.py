"""The addresses at which a client finds its first broker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spark_logbus.client.cluster.access import Access
from spark_logbus.errors import BrokerUnavailableError, ConfigError
from spark_logbus.model import BrokerAddress
from spark_logbus.wire.connect import UNKNOWN_BROKER


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Brokers to ask for the whole cluster. A value: Spark sends it from driver to tasks."""

    brokers: tuple[BrokerAddress, ...]
    #: How they are reached, where they encrypt or ask who connects.
    access: Access | None = None

    def __post_init__(self) -> None:
        if not self.brokers:
            raise ConfigError("A client needs the address of at least one broker, got none.")

    @classmethod
    def of(cls, addresses: str) -> Bootstrap:
        """Parses ``"host:port,host:port"``."""
        if not isinstance(addresses, str):
            raise ConfigError(
                f"The broker addresses are {addresses!r}, which is no text; use "
                '"host:port,host:port".'
            )
        brokers = []
        for part in addresses.split(","):
            host, _, port = part.strip().rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 65536:
                raise ConfigError(f"{part.strip()!r} is not a broker address; use host:port.")
            brokers.append((host.strip("[]"), int(port)))
        return cls.at(brokers)

    @classmethod
    def at(cls, places: Iterable[tuple[str, int]]) -> Bootstrap:
        """Brokers of which only host and port are known."""
        return cls(tuple(BrokerAddress(UNKNOWN_BROKER, host, port) for host, port in places))

    @classmethod
    def from_zookeeper(cls, connect: str) -> Bootstrap:
        """The brokers that are registered now, read in a short ZooKeeper session.

        Raises CoordinationError when ZooKeeper cannot be reached, BrokerUnavailableError when
        no broker is registered.
        """
        # Imported here: Spark tasks use this module and never talk to ZooKeeper.
        from spark_logbus.coordination.cluster.brokers import BrokerRegistry
        from spark_logbus.zookeeper import Session

        with Session(connect, client_name="logbus-bootstrap", expects_cluster=True) as session:
            return cls.registered(BrokerRegistry(session).live(), connect)

    @classmethod
    def registered(cls, brokers: Sequence[BrokerAddress], connect: str) -> Bootstrap:
        """The ``brokers`` that were found in ZooKeeper; BrokerUnavailableError if there is none."""
        if not brokers:
            raise BrokerUnavailableError(
                f"No broker is registered in ZooKeeper at {connect}; start one with "
                "'logbus broker', or check the path behind the address."
            )
        return cls(tuple(brokers))
