"""A registry in the ZooKeeper of the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_logbus.schemas.registry import SchemaAdministration, SchemaRegistry
from spark_logbus.zookeeper import Session
from tests.servers.zookeeper import session


@pytest.fixture
def opened(chroot: str) -> Iterator[Session]:
    with session(chroot) as live:
        yield live


@pytest.fixture
def registry(opened: Session) -> SchemaRegistry:
    return SchemaRegistry(opened)


@pytest.fixture
def admin(opened: Session) -> SchemaAdministration:
    return SchemaAdministration(opened)
