"""Staged records that expire, but for those of some writes."""

from __future__ import annotations

from tests.fakes.log_directory import Broker


def expire(broker: Broker, *pending: int) -> None:
    broker.log().staging.expire(
        broker.clock.now_us(), keep=lambda write, _: write in pending, promise=99, leader_epoch=1
    )
