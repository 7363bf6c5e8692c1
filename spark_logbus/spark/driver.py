"""A Spark driver's connections: brokers always, ZooKeeper where a group is kept.

Made on first use, closed together; both mend themselves after faults. The one place in the
connector that builds coordination objects; tasks use ``worker`` and see no ZooKeeper.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from spark_logbus.client import Admin, Bootstrap, ClientConfig, Cluster
from spark_logbus.errors import CoordinationError
from spark_logbus.spark.group import GroupCommitter

if TYPE_CHECKING:
    from spark_logbus.schemas.registry import SchemaRegistry
    from spark_logbus.spark.discovery import Discovery
    from spark_logbus.zookeeper import Session

# Short, because users of DriverConnections repeat calls themselves, and say so in the log.
_CALL_DEADLINE_MS = 15_000


class DriverConnections:
    """Lazy connections of one driver process. Not thread-safe.

    ``pid`` and ``application`` show people whose the group is; default is this process. A
    ``discovery``, which keeps its session if there is a group, stands for the first look in
    ZooKeeper, with all that it met; so do ``brokers``, hosts and ports that somebody has seen.
    """

    def __init__(
        self,
        zookeeper: str,
        *,
        group: str | None = None,
        pid: int | None = None,
        application: str | None = None,
        discovery: Discovery | None = None,
        brokers: Sequence[tuple[str, int]] = (),
    ) -> None:
        self._zookeeper = zookeeper
        self._group = group
        self._pid = os.getpid() if pid is None else pid
        self._application = application
        self._discovery = discovery
        self._discovered = Bootstrap.at(brokers) if brokers else None
        self._cluster: Cluster | None = None
        self._session: Session | None = None
        self._progress: GroupCommitter | None = None
        self._registry: SchemaRegistry | None = None

    def admin(self) -> Admin:
        return Admin(self.cluster())

    def bootstrap(self, topics: Iterable[str]) -> Bootstrap:
        """Addresses for tasks that read these topics, as good as the last answer of a broker."""
        return self.cluster().for_tasks(topics, "read")

    def cluster(self) -> Cluster:
        """The brokers' client, which any thread may use."""
        if self._cluster is None:
            self._await_discovery()
            found, self._discovered = self._discovered, None
            config = ClientConfig(client_id="spark-driver", retry_deadline_ms=_CALL_DEADLINE_MS)
            self._cluster = Cluster.from_zookeeper(self._zookeeper, config, found=found)
        return self._cluster

    def progress(self) -> GroupCommitter | None:
        """The group's committed offsets, or None when the reader has no group."""
        if self._group is None:
            return None
        if self._progress is None:
            from spark_logbus.coordination.groups.offsets import GroupOffsets
            from spark_logbus.coordination.groups.rewinds import GroupRewinds
            from spark_logbus.coordination.groups.topic_owners import GroupOwnership

            session = self._open_session()
            self._progress = GroupCommitter(
                GroupOffsets(session),
                GroupRewinds(session),
                GroupOwnership(session, self._group, pid=self._pid, application=self._application),
                group=self._group,
                by="spark",
            )
        return self._progress

    def registry(self) -> SchemaRegistry:
        """The schema registry."""
        if self._registry is None:
            from spark_logbus.schemas.registry import SchemaRegistry

            self._registry = SchemaRegistry(self._open_session())
        return self._registry

    def require_zookeeper(self) -> None:
        """Raises CoordinationError if ZooKeeper is known not to answer now; does not wait."""
        if self._session is None:
            return
        from spark_logbus.zookeeper import SessionState

        if self._session.state is not SessionState.CONNECTED:
            raise CoordinationError(
                f"ZooKeeper at {self._session.connect.servers} does not answer now."
            )

    def _open_session(self) -> Session:
        self._await_discovery()
        if self._session is None:
            from spark_logbus.zookeeper import Session

            session = Session(self._zookeeper, client_name="spark-driver", expects_cluster=True)
            try:
                session.start()
            except BaseException:
                session.close()
                raise
            self._session = session
        return self._session

    def _await_discovery(self) -> None:
        """Take over what was discovered, or raise what that met; once."""
        if self._discovery is None:
            return
        try:
            brokers, self._session = self._discovery.result()
        finally:
            self._discovery = None
        self._discovered = Bootstrap.registered(brokers, self._zookeeper)

    def close(self) -> None:
        discovery, self._discovery = self._discovery, None
        if discovery is not None:
            discovery.close()
        self._close_session()  # first: whoever waits for the group can go on
        self._close_cluster()

    def _close_cluster(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    def _close_session(self) -> None:
        session, self._session, self._progress = self._session, None, None
        self._registry = None
        if session is not None:
            session.close()
