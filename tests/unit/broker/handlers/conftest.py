from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_logbus.log import LogConfig
from tests.fakes.broker_parts import logs_in
from tests.unit.broker.handlers.asking import Asking


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Asking]:
    config = LogConfig(index_interval_bytes=128)
    with logs_in(tmp_path / "data", config) as logs:
        asking = Asking(logs)
        asking.peer.handshaken = True
        yield asking
        asking.executor.stop()
