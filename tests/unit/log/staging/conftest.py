"""Fixtures of staging: a broker whose segments are small."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_logbus.log import LogConfig
from tests.fakes.log_directory import Broker


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path / "data", config=LogConfig(segment_bytes=4096, index_interval_bytes=256))
