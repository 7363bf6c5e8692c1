"""Holds the broker's id: registers it, and refuses requests while another broker has it."""

from __future__ import annotations

import logging
import threading

from spark_logbus import __version__
from spark_logbus.broker.handlers.dispatch import RequestDispatcher
from spark_logbus.broker.replica.manager import ReplicaManager
from spark_logbus.coordination.cluster.brokers import BrokerRegistry
from spark_logbus.coordination.cluster.lease import Lease
from spark_logbus.errors import (
    BrokerIdInUseError,
    BrokerShuttingDownError,
    LogbusError,
    NotLeaderError,
)
from spark_logbus.model import BrokerAddress

logger = logging.getLogger(__name__)


class BrokerIdentity:
    """Thread-safe: ``register`` and ``give_up`` are called by the broker, the rest by the session's
    worker."""

    def __init__(
        self,
        broker_id: int,
        *,
        registry: BrokerRegistry,
        lease: Lease,
        replica_manager: ReplicaManager,
        requests: RequestDispatcher,
    ) -> None:
        self._id = broker_id
        self._registry = registry
        self._lease = lease
        self._replica_manager = replica_manager
        self._requests = requests
        self._lock = threading.Lock()
        self._given_up = False

    def register(self, address: BrokerAddress) -> None:
        """Raises BrokerIdInUseError, CoordinationError."""
        self._registry.register(
            address, version=__version__, on_conflict=self._lost, on_registered=self._registered
        )

    def give_up(self) -> None:
        """Refuse all requests from now on, and deregister, if ZooKeeper answers."""
        with self._lock:
            self._given_up = True
            self._requests.refusal = BrokerShuttingDownError(
                f"Broker {self._id} is shutting down; try again elsewhere or later."
            )
        # Closing the session does as much, but at the end; this lets clients know now, if it can.
        threading.Thread(target=self._deregister, name="deregister", daemon=True).start()

    def _deregister(self) -> None:
        try:
            self._registry.deregister()
        except LogbusError as error:
            logger.debug("The broker's node in ZooKeeper goes with its session: %s", error)

    def _lost(self, error: BrokerIdInUseError) -> None:
        """Another broker took the id while ZooKeeper thought this one gone: clients are its until
        it is gone in turn."""
        refusal = NotLeaderError(
            f"Broker {self._id} at this address serves nothing while another one has its id. "
            f"{error.message} It then goes on by itself."
        )
        self._refuse(refusal)
        self._replica_manager.resign()
        self._lease.end(refusal)

    def _registered(self, new_session: bool) -> None:
        """The id is this broker's: still, or again."""
        if new_session:
            self._replica_manager.check_epochs()
        if self._lease.refusal is not None and not self._given_up:
            logger.warning("Broker %d has its id again and goes on serving.", self._id)
            self._replica_manager.lead_again()
            self._refuse(None)
        self._lease.begin()

    def _refuse(self, refusal: LogbusError | None) -> None:
        with self._lock:
            if not self._given_up:
                self._requests.refusal = refusal
