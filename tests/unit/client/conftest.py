from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_logbus.client import Cluster
from tests.unit.client.fake_broker import FakeCluster
from tests.unit.client.helpers import QUICK


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    """Two fake brokers; partition n of a topic is led by broker n % 2 + 1."""
    with FakeCluster(2) as cluster:
        yield cluster


@pytest.fixture
def cluster(fake: FakeCluster) -> Iterator[Cluster]:
    with Cluster.connect(fake.bootstrap, QUICK) as connected:
        yield connected
