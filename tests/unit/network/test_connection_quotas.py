from __future__ import annotations

import logging

import pytest

from spark_logbus.errors import LimitExceededError
from spark_logbus.network.config import NetworkConfig
from spark_logbus.network.limits import ConnectionQuotas

LIMITS = NetworkConfig(max_connections=5, max_connections_per_address=3)


def test_each_address_has_its_share_and_gets_it_back() -> None:
    admission = ConnectionQuotas(LIMITS, first_reserved=1000)
    for _ in range(3):
        admission.admit("a", local=False, descriptor=1)
    with pytest.raises(LimitExceededError, match=r"3 of a are open \(max_connections_per_address"):
        admission.admit("a", local=False, descriptor=1)
    for _ in range(2):
        admission.admit("b", local=False, descriptor=1)
    with pytest.raises(LimitExceededError, match=r"5 are open \(max_connections\)"):
        admission.admit("c", local=False, descriptor=1)
    admission.leave("a", local=False)
    admission.admit("a", local=False, descriptor=1)


def test_each_local_process_has_its_share() -> None:
    limits = NetworkConfig(
        max_connections=50, max_connections_per_address=5, max_connections_per_process=2
    )
    admission = ConnectionQuotas(limits, first_reserved=1000)
    for process in ("process 1", "process 2"):
        for _ in range(2):
            admission.admit(process, local=True, descriptor=1)
        with pytest.raises(LimitExceededError, match=f"2 of {process} .*_per_process"):
            admission.admit(process, local=True, descriptor=1)
    admission.admit("process 3", local=True, descriptor=1)
    with pytest.raises(LimitExceededError, match=r"5 of this machine .*_per_address"):
        admission.admit("process 4", local=True, descriptor=1)
    admission.admit("127.0.0.1", local=False, descriptor=1)
    admission.leave("process 1", local=True)
    admission.admit("process 4", local=True, descriptor=1)


def test_the_last_descriptors_are_for_the_logs() -> None:
    admission = ConnectionQuotas(LIMITS, first_reserved=10)
    admission.admit("a", local=False, descriptor=9)
    with pytest.raises(LimitExceededError, match="open files"):
        admission.admit("a", local=False, descriptor=10)


def test_refusals_are_reported_together(caplog: pytest.LogCaptureFixture) -> None:
    admission = ConnectionQuotas(LIMITS, first_reserved=0)
    for _ in range(7):
        with pytest.raises(LimitExceededError):
            admission.admit("a", local=False, descriptor=1)
    with caplog.at_level(logging.WARNING):
        admission.report()
        admission.report()
    (record,) = caplog.records
    assert "Refused 7 connections" in record.getMessage()


def test_it_is_crowded_where_a_quarter_is_left() -> None:
    limits = NetworkConfig(max_connections=16, max_connections_per_address=8)
    admission = ConnectionQuotas(limits, first_reserved=1000)
    for _ in range(5):
        admission.admit("a", local=False, descriptor=1)
    assert not admission.is_crowded("a", local=False)
    admission.admit("a", local=False, descriptor=1)
    assert admission.is_crowded("a", local=False)
    assert not admission.is_crowded("b", local=False)
    for peer in ("b", "c"):
        for _ in range(3):
            admission.admit(peer, local=False, descriptor=1)
    assert admission.is_crowded("d", local=True)
