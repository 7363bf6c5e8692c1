"""Certificates that are read anew, and what is said of them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from spark_logbus.security.tls import ServerTls, of_server
from tests.fakes.clock import ManualClock
from tests.servers.certificates import Authority

DAY_US = 86_400_000_000


@pytest.mark.parametrize(("days_later", "is_told"), [(0, False), (2, True)])
def test_a_certificate_that_has_expired_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, days_later: int, is_told: bool
) -> None:
    files = Authority(tmp_path).files("broker", "127.0.0.1", days=1)
    clock = ManualClock(wall_us=int(time.time() * 1e6) + days_later * DAY_US)
    current = of_server(ServerTls(certificate=files.certificate, key=files.key), clock)
    current.get()
    said = [each.message for each in caplog.records if "has expired" in each.message]
    assert bool(said) == is_told
    assert all(str(files.certificate) in each for each in said)
