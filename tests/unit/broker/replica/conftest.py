from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_logbus.broker.replica.watermark import HighWatermarks
from tests.fakes.broker_parts import logs_in
from tests.unit.broker.replica.leading import Leading


@pytest.fixture
def leading(tmp_path: Path) -> Iterator[Leading]:
    watermarks = HighWatermarks()
    with logs_in(tmp_path / "data", watermark=watermarks) as logs:
        leading = Leading(logs, watermarks)
        leading.lead()
        yield leading
