"""Output of the commands about partitions with several replicas."""

from __future__ import annotations

import json

import pytest

from spark_logbus.cli.admin import cluster as shown_cluster
from spark_logbus.cli.admin import topics as shown_topics
from spark_logbus.client import ClusterDescription, PartitionDescription, TopicDescription
from spark_logbus.client.admin.cluster_health import BrokerDescription
from spark_logbus.coordination.cluster.brokers import BrokerRegistration
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.protocol import PartitionEnds

LEADER = BrokerAddress(1, "h", 9192, rack="east")
ENDS = PartitionEnds(0, 5, 5, 100)


def topic(name: str, *parts: tuple[tuple[int, ...], tuple[int, ...]]) -> TopicDescription:
    return TopicDescription(
        name,
        "a" * 32,
        {},
        {
            number: PartitionDescription(
                number, LEADER, ENDS, leader_id=1, replicas=replicas, in_sync=in_sync
            )
            for number, (replicas, in_sync) in enumerate(parts)
        },
    )


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_replicas_and_those_that_lack_are_described(capsys: pytest.CaptureFixture[str]) -> None:
    three = topic("t", ((1, 2, 3), (3, 1, 2)), ((1, 2, 3), (1,)))
    assert [part.is_under_replicated for part in three.partitions.values()] == [False, True]
    shown_topics._partitions_table([three, topic("u", ((), ()))], {1}).print()
    head, first, second, third = lines(capsys.readouterr().out)
    assert head[4:6] == ["REPLICAS", "IN-SYNC"]
    assert first[4:] == ["1,", "2,", "3", "3,", "1,", "2", "0", "5", "100", "ok"]
    assert second[-1] == "under-replicated"
    assert third[4:6] == ["1", "1"]
    rows = shown_topics._partitions(three)
    assert [each["under_replicated"] for each in rows] == [False, True]
    assert rows[1]["replicas"] == [1, 2, 3]
    assert rows[1]["in_sync"] == [1]
    json.dumps(rows)


def test_a_topic_without_replicas_is_described_as_ever(capsys: pytest.CaptureFixture[str]) -> None:
    shown_topics._partitions_table([topic("u", ((), ()))], {1}).print()
    assert "REPLICAS" not in capsys.readouterr().out
    [row] = shown_topics._partitions(topic("u", ((), ())))
    assert (row["replicas"], row["in_sync"], row["under_replicated"]) == ([1], [1], False)


def described(
    under_replicated: dict[TopicPartition, list[int]],
    under_min_in_sync: dict[TopicPartition, int] | None = None,
) -> ClusterDescription:
    registration = BrokerRegistration(LEADER, "1.0", 0, 3)
    one = BrokerDescription(
        broker_id=1, registration=registration, partitions=2, offline=0, size_bytes=9, problem=None,
        follows=4,
    )  # fmt: skip
    return ClusterDescription(
        zookeeper="zk", brokers=[one], topics=1, partitions=2, offline={},
        under_replicated=under_replicated, under_min_in_sync=under_min_in_sync or {},
    )  # fmt: skip


def test_a_cluster_that_lacks_replicas_is_not_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    found = described({TopicPartition("t", 1): [2, 3]})
    assert not found.healthy
    shown_cluster._print(found)
    told = capsys.readouterr().out
    assert "RACK" in told
    assert "FOLLOWS" in told
    assert "Not healthy: 1 of 2 partitions under-replicated: t-1." in told
    fields = shown_cluster._fields(found)
    assert fields["under_replicated"] == [{"topic": "t", "partition": 1, "not_in_sync": [2, 3]}]
    assert fields["brokers"][0]["rack"] == "east"
    assert fields["under_min_in_sync"] == []
    assert described({}).healthy
    shown_cluster._print(described({TopicPartition("t", 1): [2, 3]}, {TopicPartition("t", 1): 1}))
    assert (
        "under-replicated: t-1; 1 of 2 partitions under min.insync.replicas: t-1."
        in capsys.readouterr().out
    )
    fields = shown_cluster._fields(described({}, {TopicPartition("t", 1): 1}))
    assert fields["under_min_in_sync"] == [{"topic": "t", "partition": 1, "in_sync": 1}]
