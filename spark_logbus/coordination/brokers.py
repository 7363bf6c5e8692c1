"""Which brokers are alive: one ephemeral node each."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from spark_logbus.clock import Clock
from spark_logbus.coordination import paths
from spark_logbus.coordination.payloads import BrokerPayload, decode, encode
from spark_logbus.errors import BrokerIdInUseError, InvalidRequestError
from spark_logbus.model import BrokerAddress
from spark_logbus.retry import Deadline
from spark_logbus.zookeeper.nodes import ConflictError, Node, Nodes
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import Create, Delete, SetData
from spark_logbus.zookeeper.unreadable import CorruptNodeError, foreign_node
from spark_logbus.zookeeper.watches import Change, ChildrenView, Subscription

logger = logging.getLogger(__name__)

# ZooKeeper expires sessions on its own ticks (2 s by default) and never grants less than two.
_EXPIRY_MARGIN_MS = 5_000
_PROGRESS_S = 2.0


class BrokerRegistry:
    """Registers a broker, and tells who is registered. Thread-safe.

    One registry holds at most one registration; it ends with ``deregister`` or the session.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._clock: Clock = session.clock
        self._tree = Nodes(session)
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
        here, on this thread; then after every reconnection, and when it was got back. It is told
        if the session is a new one, in which case others may have had the id meanwhile, may
        make requests, and is called again when it raises CoordinationError.
        """
        payload = BrokerPayload(
            host=address.host,
            port=address.port,
            started_us=self._started_us,
            version=version,
            session_timeout_ms=self._session.session_timeout_ms,
            local_socket=address.local_socket,
        )
        registration = _Registration(self._tree, address, payload, on_conflict, on_registered)
        with self._lock:
            if self._registration is not None:
                raise InvalidRequestError(
                    f"{self._registration.address} is registered here already; deregister it "
                    f"before {address}."
                )
            self._registration = registration
        try:
            registration.claim()
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
        names = self._tree.children(paths.BROKERS) or []
        nodes = self._tree.get_many(f"{paths.BROKERS}/{name}" for name in names)
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
        return _addresses(found)

    def watch(self, f: Callable[[list[BrokerAddress]], None]) -> None:
        """Call ``f`` with all live brokers: now, on this thread; then, on the session's worker,
        at every change and whenever the session was renewed. Changes in quick succession may
        come as one. ``f`` may make requests, but holds up other callbacks meanwhile."""
        ChildrenView(
            self._tree,
            paths.BROKERS,
            decode=_decode_broker,
            deliver=lambda found: f(_addresses(found)),
        ).start()


class _Flag(threading.Event):
    """Set by the watch it offers."""

    def raise_for(self, _event: object) -> None:
        self.set()


class _Registration:
    """The node of one broker: claims it, guards it, releases it."""

    def __init__(
        self,
        tree: Nodes,
        address: BrokerAddress,
        payload: BrokerPayload,
        on_conflict: Callable[[BrokerIdInUseError], None] | None,
        on_registered: Callable[[bool], None] | None,
    ) -> None:
        self.address = address
        self._tree = tree
        self._session = tree.session
        self._path = paths.broker(address.broker_id)
        self._payload = payload
        self._on_conflict = on_conflict
        self._on_registered = on_registered
        self._registered_in = 0  # the session in which that is through
        self._guard = Subscription(tree, str(address), self._restore)

    def claim(self) -> None:
        """Wait for a leftover to go, create the node, and watch over it from then on."""
        self._tree.ensure(paths.BROKERS)
        clock = self._session.clock
        give_up: float | None = None
        while True:
            changed = _Flag()
            node = self._try_claim(changed.raise_for)
            if node is None:
                break
            current_owner = self._rival(node)
            if give_up is None:
                wait_ms = self._wait_ms(current_owner)
                give_up = clock.monotonic() + wait_ms / 1000
                if wait_ms:
                    logger.info(
                        "An earlier registration of broker %d (%s) is still in ZooKeeper; "
                        "waiting up to %.0f s for it to expire.",
                        self.address.broker_id,
                        self._where(current_owner),
                        wait_ms / 1000,
                    )
            remaining = give_up - clock.monotonic()
            if remaining <= 0:
                raise self._in_use(current_owner)
            if not changed.wait(min(remaining, _PROGRESS_S)):
                logger.info(
                    "Still waiting up to %.0f s for the earlier registration of broker %d.",
                    max(0.0, give_up - clock.monotonic()),
                    self.address.broker_id,
                )
        self._guard.start()

    def release(self) -> None:
        self._guard.cancel()

        def step(deadline: Deadline) -> None:
            node = self._tree.get(self._path, deadline=deadline)
            if node is not None and node.owner == self._session.session_id:
                self._tree.transact(
                    f"deregister {self.address}",
                    [Delete(self._path, node.version)],
                    deadline=deadline,
                )

        self._tree.repeat(f"deregister {self.address}", step)

    def holds(self, deadline: Deadline) -> bool:
        session_id = self._session.session_id
        self._tree.sync(deadline=deadline)  # else a server that lags behind could answer
        node = self._tree.get(self._path, deadline=deadline)
        ours = node is not None and node.owner == session_id
        return ours and session_id == self._session.session_id == self._registered_in

    def _try_claim(self, watch: Callable[[Any], None]) -> Node | None:
        """None when the node is ours; else the node that is in the way, watched."""

        def step(deadline: Deadline) -> Node | None:
            node = self._tree.get(self._path, watch=watch, deadline=deadline)
            if node is None:
                self._tree.transact(
                    f"register {self.address}",
                    [Create(self._path, encode(self._payload), ephemeral=True)],
                    deadline=deadline,
                )
                return None
            if node.owner != self._session.session_id:
                return node
            # Ours, perhaps without our knowing: the reply to our create was lost.
            if node.data != encode(self._payload):
                logger.error(
                    "The ZooKeeper node %s was overwritten (%r); it is set right.",
                    self._path,
                    node.data[:60],
                )
                self._tree.transact(
                    f"register {self.address}",
                    [SetData(self._path, encode(self._payload), node.version)],
                    deadline=deadline,
                )
            return None

        return self._tree.repeat(f"register {self.address}", step)

    def _restore(self, change: Change) -> None:
        """The node went away (session lost, or removed by hand), or may have."""
        self._tree.ensure(paths.BROKERS)  # a ZooKeeper that lost its data has not even that
        conflict = self._try_claim(self._guard.watch)
        if conflict is None:
            # A node that was just created is not watched yet.
            if not self._tree.exists(self._path, watch=self._guard.watch):
                raise ConflictError(f"{self._path} was removed at once.")
            if change.new_session:
                logger.info("Registered %s again in the new ZooKeeper session.", self.address)
            session_id = self._session.session_id
            if self._on_registered is not None:
                self._on_registered(change.new_session)
            self._registered_in = session_id
            return
        current_owner = self._rival(conflict)
        if current_owner == self._payload:
            return  # of our lost session, on its way out; the watch tells when
        error = self._in_use(current_owner)
        logger.error("%s", error.message)
        if self._on_conflict is not None:
            self._on_conflict(error)

    def _rival(self, node: Node) -> BrokerPayload | None:
        try:
            return decode(BrokerPayload, node.data, path=self._path)
        except CorruptNodeError:
            return None

    def _wait_ms(self, current_owner: BrokerPayload | None) -> int:
        if current_owner is None:
            return 0
        ours = self._payload
        same_place = (current_owner.host, current_owner.port) == (ours.host, ours.port)
        if not same_place and current_owner.started_us >= ours.started_us:
            return 0
        return max(current_owner.session_timeout_ms, ours.session_timeout_ms) + _EXPIRY_MARGIN_MS

    def _in_use(self, current_owner: BrokerPayload | None) -> BrokerIdInUseError:
        return BrokerIdInUseError(
            f"Broker id {self.address.broker_id} is taken by a live broker "
            f"({self._where(current_owner)}), so the one at "
            f"{self.address.host}:{self.address.port} cannot "
            "have it. Stop the other broker, or give this one another id."
        )

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
    return sorted(
        BrokerAddress(
            broker_id=broker_id,
            host=payload.host,
            port=payload.port,
            local_socket=payload.local_socket,
        )
        for broker_id, payload in found.values()
    )
