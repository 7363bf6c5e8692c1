from __future__ import annotations

import pytest

from spark_logbus.security.attempts import LoginLimits, TooManyFailuresError
from tests.fakes.clock import ManualClock


@pytest.mark.parametrize(
    ("one", "another"),
    [("2001:db8:1:2::1", "2001:db8:1:2:ffff::9"), ("::ffff:10.0.0.1", "10.0.0.1")],
)
def test_addresses_of_one_network_share_a_limit(one: str, another: str) -> None:
    limits = LoginLimits(ManualClock())
    for _ in range(5):
        limits.require(one, "anna")
        limits.failed(one, "anna")
    with pytest.raises(TooManyFailuresError):
        limits.require(another, "anna")


@pytest.mark.parametrize("elsewhere", ["2001:db8:1:3::1", "10.0.0.1", "user 1000"])
def test_addresses_elsewhere_have_limits_of_their_own(elsewhere: str) -> None:
    limits = LoginLimits(ManualClock())
    for _ in range(60):
        limits.failed("2001:db8:1:2::1", "anna")
    limits.require(elsewhere, "anna")
