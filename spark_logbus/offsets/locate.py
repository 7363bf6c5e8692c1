"""Starts and ends looked up: brokers are asked what timestamps mean, the rest is ``resolve``."""

from __future__ import annotations

from collections.abc import Mapping

from spark_logbus.client import Admin
from spark_logbus.model import TopicPartition
from spark_logbus.offsets.resolve import NOTHING, Resolved, lookups, resolve
from spark_logbus.offsets.snapshot import Snapshot
from spark_logbus.offsets.specs import Bound


def locate(
    bound: Bound,
    snapshot: Snapshot,
    admin: Admin,
    *,
    now_us: int,
    committed: Mapping[TopicPartition, int] = NOTHING,
) -> Resolved:
    """The offset that ``bound`` means in every partition of ``snapshot``, as of ``now_us``."""
    wanted = lookups(bound.positions, snapshot, now_us=now_us)
    found = admin.list_offsets(wanted) if wanted else {}
    return resolve(bound, snapshot, committed=committed, found=found)
