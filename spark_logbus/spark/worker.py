"""What a process keeps and does between Spark's tasks: connections, loaded modules, its socket.

Spark reuses its Python workers, and connecting costs more than planning a small read: so each
process keeps one Cluster for every set of brokers that it has been sent to. Tasks get their
addresses from the driver and never talk to ZooKeeper.
"""

from __future__ import annotations

import atexit
import gc
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Generic, TypeVar

from spark_logbus.client import Bootstrap, ClientConfig, Cluster
from spark_logbus.spark.worker_socket import acknowledge_next_task, send_at_once

if TYPE_CHECKING:
    from spark_logbus.security.profiles import Profile

# More than one only while brokers move, when jobs read several clusters, and where brokers ask who
# connects: a job's tokens for what it reads and for what it writes are two.
MAX_CLUSTERS = 8
# Short, because whoever plans or commits repeats calls itself, and says so in the log.
_DRIVER_DEADLINE_MS = 15_000


K = TypeVar("K", bound=Hashable)


def connect_task(where: tuple[Bootstrap, str | None]) -> Cluster:
    bootstrap, rack = where
    return Cluster.connect(bootstrap, ClientConfig(client_id="spark-task", rack=rack))


def connect_driver(where: tuple[str, Profile | None]) -> Cluster:
    zookeeper, _ = where
    config = ClientConfig(client_id="spark-driver", retry_deadline_ms=_DRIVER_DEADLINE_MS)
    return Cluster.from_zookeeper(zookeeper, config)


class ClusterPool(Generic[K]):
    """One Cluster for each key that says where it is, the least recently used closed first.
    Thread-safe.

    A Cluster that falls out is closed although another thread may hold it: with more than
    ``MAX_CLUSTERS`` clusters in use at once by one process, requests fail and are retried.
    """

    def __init__(self, connect: Callable[[K], Cluster]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._clusters: OrderedDict[K, Cluster] = OrderedDict()
        self._process = os.getpid()

    def get(self, key: K) -> Cluster:
        """The process's Cluster for ``key``, connected if there is none yet."""
        with self._lock:
            self._forget_inherited()
            cluster = self._clusters.get(key)
            if cluster is None:
                cluster = self._connect(key)
                self._clusters[key] = cluster
                while len(self._clusters) > MAX_CLUSTERS:
                    _, oldest = self._clusters.popitem(last=False)
                    oldest.close()
            self._clusters.move_to_end(key)
            return cluster

    def close(self) -> None:
        """Close the Clusters that this process has connected."""
        if os.getpid() != self._process:
            return  # they are its parent's, and so may be the lock
        with self._lock:
            clusters = list(self._clusters.values())
            self._clusters.clear()
        for cluster in clusters:
            cluster.close()

    def _forget_inherited(self) -> None:
        """Drops, without closing them, sockets inherited by a fork: closing would disturb the
        parent."""
        if os.getpid() != self._process:
            self._process = os.getpid()
            self._clusters = OrderedDict()


_of_tasks = ClusterPool(connect_task)
_of_the_driver = ClusterPool(connect_driver)
# Spark ends the workers that it forks without a word; programs, and workers that it starts, come
# to their end, where a socket that is still open is complained of.
atexit.register(_of_tasks.close)
atexit.register(_of_the_driver.close)


def shared_cluster(bootstrap: Bootstrap, rack: str | None = None) -> Cluster:
    """This process's Cluster for ``bootstrap`` and a reader in ``rack``; do not close it.

    Tasks whose tokens are of different owners, or good for different things, never share one.
    """
    cluster = _of_tasks.get((bootstrap, rack))
    cluster.take_access(bootstrap)
    return cluster


def driver_cluster(zookeeper: str) -> Cluster:
    """This process's Cluster for the brokers that are registered there; do not close it.

    For the processes in which Spark plans and commits writes: it uses them again and again, for
    every micro-batch of a stream, and a look in ZooKeeper takes longer than the rest. Where a
    profile says something else by now, such as another password, it is another one.
    """
    # Imported here: tasks use this module, and have no profile.
    from spark_logbus.zookeeper.connect_string import ConnectString

    return _of_the_driver.get((zookeeper, ConnectString.parse(zookeeper).profile))


@contextmanager
def task_of_worker() -> Iterator[None]:
    """Around a task's work: what makes this one and the next short."""
    send_at_once()
    yield
    _freeze_gc()
    acknowledge_next_task()


@cache
def _freeze_gc() -> None:
    """Leave everything that this process has loaded so far out of its garbage collections.

    A Python worker of Spark collects its garbage after every task. That walks through all objects
    of PySpark, pandas and pyarrow, which are there to stay: 50 ms or more of a core, as much as
    reading some megabytes takes. What a task makes after this is collected as ever. What is frozen
    is still freed when its last reference goes; only a cycle among these objects stays, and this
    happens once in the life of a process.
    """
    gc.freeze()
