"""Giving up what is lost of logs: planned from ZooKeeper, and handed to the brokers there."""

from __future__ import annotations

from collections.abc import Iterable

from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.groups.offsets import GroupOffsets
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
        topics = TopicRegistry(session)
        groups = GroupOffsets(session)
        plan = prepare(topic, topics=topics, groups=groups, only=partitions, keep=keep)
        if execute:
            apply(plan, topics)
        return plan
