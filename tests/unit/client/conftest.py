from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_logbus.client import Cluster
from tests.builders.arrow_batches import QUICK
from tests.fakes.broker import FakeCluster


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    """Two fake brokers; partition n of a topic is led by broker n % 2 + 1."""
    with FakeCluster(2) as cluster:
        yield cluster


@pytest.fixture
def cluster(fake: FakeCluster) -> Iterator[Cluster]:
    with Cluster.connect(fake.bootstrap, QUICK) as connected:
        yield connected
