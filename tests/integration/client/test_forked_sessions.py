"""What a client has in ZooKeeper belongs to the process that made it, not to one forked from it."""

from __future__ import annotations

import os
import pickle
import signal
import uuid
from collections.abc import Callable

import pytest

from spark_logbus.client import Admin, Cluster, Consumer, ConsumerConfig, Producer
from spark_logbus.errors import ProcessForkedError
from spark_logbus.model import TopicPartition


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    Admin(cluster).create_topic(name, partitions=1)
    return name


def in_child(call: Callable[[], object]) -> object:
    """Returns what ``call`` returns or raises in a forked process, which has a minute."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            try:
                told: object = call()
            except BaseException as error:  # noqa: BLE001 - all of it is the parent's to judge
                told = error
            os.write(writing, pickle.dumps(told))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        told = stream.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, "it hung"
    return pickle.loads(told)


def test_a_member_of_a_group_is_one_in_its_own_process_only(cluster: Cluster, topic: str) -> None:
    admin = Admin(cluster)
    config = ConsumerConfig(group=topic, auto_commit_ms=None)
    at = TopicPartition(topic, 0)
    with Producer(cluster) as producer, Consumer(cluster, config) as consumer:
        consumer.subscribe(topic)
        producer.send_many(topic, [b"%d" % number for number in range(100)])
        records = iter(consumer)
        assert [next(records).value for _ in range(10)] == [b"%d" % n for n in range(10)]
        calls: dict[str, Callable[[], object]] = {
            "poll": lambda: consumer.poll(60),
            "poll_arrow": lambda: consumer.poll_arrow(60),
            "iterate": lambda: [next(records).value for _ in range(2)],
            "commit": lambda: consumer.commit({at: 99}),
            "committed": lambda: consumer.committed([at]),
            "unsubscribe": consumer.unsubscribe,
            "close": consumer.close,
        }
        for name, call in calls.items():
            told = in_child(call)
            assert isinstance(told, ProcessForkedError), (name, told)
        assert in_child(lambda: topic in admin.describe()) is True
        # It is the same member still, at the same place.
        assert [next(records).value for _ in range(90)] == [b"%d" % n for n in range(10, 100)]
        consumer.commit()
        assert consumer.committed([at]) == {at: 100}


def test_a_program_makes_its_own_after_the_fork(cluster: Cluster, topic: str) -> None:
    with Producer(cluster) as producer:
        producer.send(topic, b"parent").result(60)

        def use() -> object:
            with Producer(cluster) as own, Consumer(cluster, ConsumerConfig(group="c")) as consumer:
                consumer.subscribe(topic)
                offset = own.send(topic, b"child").result(60).offset
                values: list[bytes | None] = []
                while len(values) < 2:
                    values += [record.value for record in consumer.poll(60)]
                return offset, values

        told = in_child(lambda: in_child(use))  # of a child's child
        assert told == (1, [b"parent", b"child"])
        assert producer.send(topic, b"parent again").result(60).offset == 2
