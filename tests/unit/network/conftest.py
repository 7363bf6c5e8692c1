"""A connection for each test."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from spark_logbus.network.config import NetworkConfig
from tests.unit.network.ends import Ends, over


@pytest.fixture
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    config: NetworkConfig = getattr(request, "param", NetworkConfig(max_in_flight=3))
    with over(*socket.socketpair(), config) as both:
        yield both
