"""A Spark driver's connections: brokers always, ZooKeeper where a group is kept.

Made on first use, closed together; both mend themselves after faults. The one place in the
connector that builds coordination objects; tasks use ``worker`` and see no ZooKeeper.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from spark_logbus.client import Admin, Bootstrap, ClientConfig, Cluster
from spark_logbus.errors import ConfigError, InvalidOptionError
from spark_logbus.spark.group import GroupCommitter

if TYPE_CHECKING:
    from spark_logbus.zookeeper import Session

# Short, because users of DriverConnections repeat calls themselves, and say so in the log.
_CALL_DEADLINE_MS = 15_000


def zookeeper_address(given: str | None) -> str:
    """The option ``zookeeper``, else ``$LOGBUS_ZOOKEEPER``, else the local default.

    Raises InvalidOptionError for what is no connect string.
    """
    from spark_logbus.zookeeper import ENVIRONMENT_VARIABLE, ConnectString, default_connect

    connect = given or default_connect()
    try:
        ConnectString.parse(connect)
    except ConfigError as error:
        origin = "" if given else f" is not given, and ${ENVIRONMENT_VARIABLE} is of no use"
        raise InvalidOptionError(f"Option zookeeper{origin}: {error.message}") from error
    return connect


class DriverConnections:
    """Lazy connections of one driver process. Not thread-safe.

    ``pid`` and ``application`` show people whose the group is; default is this process.
    """

    def __init__(
        self,
        zookeeper: str,
        *,
        group: str | None = None,
        pid: int | None = None,
        application: str | None = None,
    ) -> None:
        self._zookeeper = zookeeper
        self._group = group
        self._pid = os.getpid() if pid is None else pid
        self._application = application
        self._cluster: Cluster | None = None
        self._session: Session | None = None
        self._progress: GroupCommitter | None = None

    def admin(self) -> Admin:
        return Admin(self.cluster())

    def bootstrap(self) -> Bootstrap:
        """Addresses for tasks, as good as the last answer of a broker."""
        return self.cluster().bootstrap

    def cluster(self) -> Cluster:
        """The brokers' client, which any thread may use."""
        if self._cluster is None:
            config = ClientConfig(client_id="spark-driver", retry_deadline_ms=_CALL_DEADLINE_MS)
            self._cluster = Cluster.from_zookeeper(self._zookeeper, config)
        return self._cluster

    def progress(self) -> GroupCommitter | None:
        """The group's committed offsets, or None when the reader has no group."""
        if self._group is None:
            return None
        if self._progress is None:
            from spark_logbus.coordination.group_offsets import GroupOffsets
            from spark_logbus.coordination.group_owners import GroupOwnership
            from spark_logbus.coordination.rewinds import GroupRewinds
            from spark_logbus.zookeeper import Session

            session = Session(self._zookeeper, client_name="spark-driver", expects_cluster=True)
            try:
                session.start()
            except BaseException:
                session.close()
                raise
            self._session = session
            self._progress = GroupCommitter(
                GroupOffsets(session),
                GroupRewinds(session),
                GroupOwnership(session, self._group, pid=self._pid, application=self._application),
                group=self._group,
                by="spark",
            )
        return self._progress

    def close(self) -> None:
        self._close_session()  # first: whoever waits for the group can go on
        self._close_cluster()

    def _close_cluster(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    def _close_session(self) -> None:
        session, self._session, self._progress = self._session, None, None
        if session is not None:
            session.close()
