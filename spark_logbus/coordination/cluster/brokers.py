"""Registrations of live brokers: one ephemeral node each."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from spark_logbus.clock import Clock
from spark_logbus.coordination import paths
from spark_logbus.coordination.payloads import BrokerPayload, decode, encode
from spark_logbus.errors import BrokerIdInUseError, InvalidRequestError
from spark_logbus.model import BrokerAddress
from spark_logbus.retry import Deadline
from spark_logbus.zookeeper.ephemeral import EphemeralNode, acquire_or_wait, expiry_ms
from spark_logbus.zookeeper.nodes import Node, Nodes
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.unreadable import CorruptNodeError, foreign_node
from spark_logbus.zookeeper.watches import ChildrenView

logger = logging.getLogger(__name__)

#: Feature of brokers to which partitions can be moved.
MOVES: Final = 1
#: Feature of brokers that keep replicas of what others lead, and lead what others replicate.
REPLICATES: Final = 2


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A live broker, its version, and when it was first registered (µs since 1970); ``features``
    says what it can do (``MOVES``, ``REPLICATES``)."""

    address: BrokerAddress
    version: str
    started_us: int
    features: int


class BrokerRegistry:
    """Registers a broker, and lists those that are registered. Thread-safe.

    One registry holds at most one registration; it ends with ``deregister`` or the session.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._clock: Clock = session.clock
        self._nodes = Nodes(session)
        self._started_us = self._clock.now_us()
        self._lock = threading.Lock()
        self._registration: _Registration | None = None

    def register(
        self,
        address: BrokerAddress,
        *,
        version: str,
        on_conflict: Callable[[BrokerIdInUseError], None] | None = None,
        on_registered: Callable[[bool], None] | None = None,
    ) -> None:
        """Announce the broker, and announce it again whenever the session had to be renewed.

        A node that an earlier run of this broker left behind (same host and port, or started
        before us) is waited for until its session must have expired. BrokerIdInUseError when
        it stays, or when a broker that started later holds the id. ``on_conflict`` is called
        when another broker took the id while our session was lost; the broker gets it back by
        itself when that one is gone. ``on_registered`` is called when the id is found to be ours:
        here, on this thread; then after every reconnection, and when it was got back. Its
        argument says that the session is a new one, in which case others may have had the id
        meanwhile. It may make requests, and is called again when it raises CoordinationError.
        """
        payload = BrokerPayload(
            host=address.host,
            port=address.port,
            started_us=self._started_us,
            version=version,
            session_timeout_ms=self._session.session_timeout_ms,
            local_socket=address.local_socket,
            features=MOVES | REPLICATES,
            rack=address.rack,
            tls_port=address.tls_port,
            gateway_port=address.gateway_port,
        )
        registration = _Registration(self._nodes, address, payload, on_conflict, on_registered)
        with self._lock:
            if self._registration is not None:
                raise InvalidRequestError(
                    f"{self._registration.address} is registered here already; deregister it "
                    f"before {address}."
                )
            self._registration = registration
        try:
            registration.acquire()
        except BaseException:
            with self._lock:
                self._registration = None
            raise
        logger.info("Registered %s in ZooKeeper.", address)

    def deregister(self) -> None:
        """Take the broker's node away; does nothing when there is none."""
        with self._lock:
            registration, self._registration = self._registration, None
        if registration is not None:
            registration.release()
            logger.info("Took %s out of ZooKeeper's list of live brokers.", registration.address)

    def holds(self, limit_s: float) -> bool:
        """Ask ZooKeeper if the registered id is ours now; not before ``on_registered`` is through
        in this session. CoordinationError without an answer within ``limit_s`` seconds."""
        registration = self._registration
        if registration is None:
            return False
        return registration.holds(Deadline.after_ms(self._clock, int(limit_s * 1000)))

    def live(self) -> list[BrokerAddress]:
        """The registered brokers, by id."""
        return _addresses(self._registered())

    def registrations(self) -> list[BrokerRegistration]:
        """Returns what the registered brokers say of themselves, in the order of their ids."""
        return [
            BrokerRegistration(
                _address(broker_id, payload),
                payload.version,
                payload.started_us,
                payload.features,
            )
            for broker_id, payload in sorted(
                self._registered().values(), key=lambda registered: registered[0]
            )
        ]

    def _registered(self) -> dict[str, tuple[int, BrokerPayload]]:
        names = self._nodes.children(paths.BROKERS) or []
        nodes = self._nodes.get_many(f"{paths.BROKERS}/{name}" for name in names)
        found = {}
        for name in names:
            path = f"{paths.BROKERS}/{name}"
            node = nodes[path]
            if node is None:
                continue
            try:
                found[name] = _decode_broker(name, node)
            except CorruptNodeError as failure:
                self._session.unreadable.met(path, failure, instead="It counts as no broker.")
        return found

    def watch(self, f: Callable[[list[BrokerAddress]], None]) -> None:
        """Call ``f`` with all live brokers: now, on this thread; then, on the session's worker,
        at every change and whenever the session was renewed. Changes in quick succession may
        come as one. ``f`` may make requests, but holds up other callbacks meanwhile."""
        ChildrenView(
            self._nodes,
            paths.BROKERS,
            decode=_decode_broker,
            deliver=lambda found: f(_addresses(found)),
        ).start()


class _Registration:
    """The node of one broker, from its creation to its release."""

    def __init__(
        self,
        nodes: Nodes,
        address: BrokerAddress,
        payload: BrokerPayload,
        on_conflict: Callable[[BrokerIdInUseError], None] | None,
        on_registered: Callable[[bool], None] | None,
    ) -> None:
        self.address = address
        self._nodes = nodes
        self._session = nodes.session
        self._path = paths.broker(address.broker_id)
        self._payload = payload
        self._on_conflict = on_conflict
        self._on_registered = on_registered
        self._registered_in = 0  # the session in which that is through
        self._node = EphemeralNode(
            nodes,
            self._path,
            encode(payload),
            to_acquire=f"register {address}",
            to_release=f"deregister {address}",
        )

    def acquire(self) -> None:
        """Wait for a leftover to go, create the node, and guard it from then on."""
        acquire_or_wait(
            self._session,
            self._node.try_acquire,
            limit_ms=self._limit_ms,
            on_wait=self._log_wait,
            refusal=lambda node, _: self._in_use(node),
        )
        self._node.guard(on_acquired=self._acquired, on_taken=self._taken)

    def release(self) -> None:
        self._node.release()

    def holds(self, deadline: Deadline) -> bool:
        session_id = self._session.session_id
        self._nodes.sync(deadline=deadline)  # else a server that lags behind could answer
        node = self._node.current(deadline=deadline)
        ours = node is not None and self._node.is_ours(node)
        return ours and session_id == self._session.session_id == self._registered_in

    def _acquired(self, new_session: bool) -> None:
        session_id = self._session.session_id
        if new_session:
            logger.info("Registered %s again in the new ZooKeeper session.", self.address)
        if self._on_registered is not None:
            self._on_registered(new_session)
        self._registered_in = session_id

    def _taken(self, node: Node) -> None:
        error = self._in_use(node)
        logger.error("%s", error.message)
        if self._on_conflict is not None:
            self._on_conflict(error)

    def _limit_ms(self, node: Node) -> int:
        """The time for which an earlier run's node can stay; 0 if it is another broker's."""
        current_owner = self._owner_of(node)
        if current_owner is None:
            return 0
        ours = self._payload
        same_place = (current_owner.host, current_owner.port) == (ours.host, ours.port)
        if not same_place and current_owner.started_us >= ours.started_us:
            return 0
        return expiry_ms(current_owner.session_timeout_ms, ours.session_timeout_ms)

    def _log_wait(self, node: Node, left_s: float, first: bool) -> None:
        if first:
            logger.info(
                "An earlier registration of broker %d (%s) is still in ZooKeeper; "
                "waiting up to %.0f s for it to expire.",
                self.address.broker_id,
                self._where(self._owner_of(node)),
                left_s,
            )
        else:
            logger.info(
                "Still waiting up to %.0f s for the earlier registration of broker %d.",
                left_s,
                self.address.broker_id,
            )

    def _in_use(self, node: Node) -> BrokerIdInUseError:
        return BrokerIdInUseError(
            f"Broker id {self.address.broker_id} is taken by a live broker "
            f"({self._where(self._owner_of(node))}), so the one at "
            f"{self.address.host}:{self.address.port} cannot "
            "have it. Stop the other broker, or give this one another id."
        )

    def _owner_of(self, node: Node) -> BrokerPayload | None:
        try:
            return decode(BrokerPayload, node.data, path=self._path)
        except CorruptNodeError:
            return None

    def _where(self, current_owner: BrokerPayload | None) -> str:
        if current_owner is None:
            return f"its ZooKeeper node {self._path} is not readable; remove it if there is none"
        return f"at {current_owner.host}:{current_owner.port}, version {current_owner.version}"


def _decode_broker(name: str, node: Node) -> tuple[int, BrokerPayload]:
    path = f"{paths.BROKERS}/{name}"
    broker_id = paths.number_of(name)
    if broker_id is None or str(broker_id) != name:
        raise foreign_node(path, "broker")
    return broker_id, decode(BrokerPayload, node.data, path=path)


def _addresses(found: dict[str, tuple[int, BrokerPayload]]) -> list[BrokerAddress]:
    return sorted(_address(broker_id, payload) for broker_id, payload in found.values())


def _address(broker_id: int, payload: BrokerPayload) -> BrokerAddress:
    return BrokerAddress(
        broker_id=broker_id,
        host=payload.host,
        port=payload.port,
        local_socket=payload.local_socket,
        rack=payload.rack,
        tls_port=payload.tls_port,
        gateway_port=payload.gateway_port,
    )
