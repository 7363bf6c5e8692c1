"""A word, at the start of a cluster of one's own, on clocks that its brokers do not believe."""

from __future__ import annotations

from collections.abc import Sequence

from spark_logbus.cli.output import Console
from spark_logbus.clock import SystemClock
from spark_logbus.errors import StorageError
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.log import OS_FILES
from spark_logbus.log.clock_file import off_us
from spark_logbus.log.guarded_clock import JumpGuardedClock


def tell_of_clocks(out: Console, brokers: Sequence[BrokerProcess]) -> None:
    """Say what brokers that were stopped for days wait for; their own logs are seldom read."""
    now_us = SystemClock().now_us()
    for broker in brokers:
        data = broker.directory / "data"
        try:
            days = off_us(OS_FILES, data, now_us) / JumpGuardedClock.LARGEST_US
        except StorageError:
            continue  # the broker's log tells of it
        if abs(days) > 1:
            out.print(
                f"The clock is {abs(days):,.1f} days {'ahead of' if days > 0 else 'behind'} what "
                f"broker {broker.broker_id} has seen last, so it deletes old records later than "
                "their retention says. That harms nothing; to have them deleted in time, if the "
                f"clock is right:\n  logbus accept-clock {data} --execute\n"
            )
