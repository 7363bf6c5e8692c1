"""Fixtures of elections: a session, and a topic that is not there yet, or is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_logbus.zookeeper import Session
from tests.integration.coordination.replicated_topic import Cluster
from tests.servers.zookeeper import session


@pytest.fixture
def opened(chroot: str) -> Iterator[Session]:
    with session(chroot) as live:
        yield live


@pytest.fixture
def cluster(opened: Session, chroot: str) -> Cluster:
    return Cluster(opened, chroot)


@pytest.fixture
def replicated(cluster: Cluster) -> Cluster:
    cluster.create()
    return cluster
