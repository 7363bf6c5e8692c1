"""Finds a cluster's brokers in ZooKeeper while the process that needs them loads its code.

The process that plans a stream begins with its imports, which take longer than ZooKeeper takes to
open a session and to answer. So a thread asks meanwhile.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_logbus.model import BrokerAddress
    from spark_logbus.zookeeper import Session


class Discovery:
    """One look at the registered brokers, on a thread of its own. Thread-safe.

    With ``keep_session`` the session that asked stays open, for the group, and is the caller's.
    """

    def __init__(self, zookeeper: str, *, keep_session: bool) -> None:
        self._zookeeper = zookeeper
        self._keep_session = keep_session
        self._session: Session | None = None
        self._closed = False
        self._found: Future[tuple[list[BrokerAddress], Session | None]] = Future()

    def begin(self) -> None:
        threading.Thread(target=self._look, name="logbus-discovery", daemon=True).start()

    def result(self) -> tuple[list[BrokerAddress], Session | None]:
        """Wait for the brokers, none if none is registered, and the session that was kept.

        Raises what the look met, as a session's ``start`` does, and waits no longer than that.
        """
        return self._found.result()

    def close(self) -> None:
        """End the session, kept or not; a look that is under way fails with CoordinationError."""
        self._closed = True
        if self._session is not None:
            self._session.close()

    def _look(self) -> None:
        try:
            brokers, session = self._asked()
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            self._found.set_exception(error)
            return
        if self._keep_session:
            self._found.set_result((brokers, session))
        else:
            self._found.set_result((brokers, None))
            session.close()  # takes a moment, for which nobody waits

    def _asked(self) -> tuple[list[BrokerAddress], Session]:
        # Imported here: neither tasks nor the main thread need ZooKeeper's client.
        from spark_logbus.coordination.cluster.brokers import BrokerRegistry
        from spark_logbus.zookeeper import Session

        self._session = session = Session(
            self._zookeeper, client_name="spark-driver", expects_cluster=True
        )
        if self._closed:
            session.close()
        try:
            session.start()
            return BrokerRegistry(session).live(), session
        except BaseException:
            session.close()
            raise
