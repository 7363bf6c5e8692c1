"""Giving up what is lost of logs: planned from ZooKeeper, and handed to the brokers there."""

from __future__ import annotations

from collections.abc import Iterable

from spark_logbus.model import check_name
from spark_logbus.offsets.give_up import GiveUpPlan, apply, prepare
from spark_logbus.zookeeper import Session, default_connect


def give_up(
    topic: str,
    zookeeper: str | None,
    *,
    partitions: Iterable[int],
    keep: bool | None,
    execute: bool,
) -> GiveUpPlan:
    """See ``Admin.give_up``."""
    check_name("topic", topic)
    connect = zookeeper or default_connect()
    with Session(connect, client_name="logbus-topics", expects_cluster=True) as session:
        plan = prepare(topic, session, only=partitions, keep=keep)
        if execute:
            apply(plan, session)
        return plan
