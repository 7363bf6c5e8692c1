from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_logbus.coordination import paths
from spark_logbus.errors import InvalidNameError, InvalidRequestError
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper.nodes import name_of, parent_of

TP = TopicPartition("orders", 3)


def test_the_tree() -> None:
    assert paths.broker(7) == "/brokers/ids/7"
    assert paths.topic("orders") == "/brokers/topics/orders"
    assert paths.partition_state(TP) == "/brokers/topics/orders/partitions/3/state"
    assert paths.member("g", "c-1") == "/consumers/g/ids/c-1"
    assert paths.topic_owner("g", "orders") == "/consumers/g/owners/orders/all"
    assert paths.owner("g", TP) == "/consumers/g/owners/orders/3"
    assert paths.offset("g", TP) == "/consumers/g/offsets/orders/3"
    assert paths.rewinds("g") == "/consumers/g/rewinds"
    assert paths.subject("orders") == "/schemas/subjects/orders"
    assert paths.schema(7) == "/schemas/ids/0000000007"
    assert paths.schema_content("9f2c") == "/schemas/contents/9f2c"
    assert paths.rewind("g", 12) == "/consumers/g/rewinds/0000000012"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0b", "ü", "x" * 250])
def test_no_name_reaches_outside_its_node(name: str) -> None:
    makers: list[Callable[[], str]] = [
        lambda: paths.topic(name),
        lambda: paths.partitions(name),
        lambda: paths.partition_state(TopicPartition(name, 0)),
        lambda: paths.group(name),
        lambda: paths.subject(name),
        lambda: paths.offset(name, TP),
        lambda: paths.offset("g", TopicPartition(name, 0)),
        lambda: paths.member("g", name),
        lambda: paths.owner("g", TopicPartition(name, 0)),
        lambda: paths.topic_owner("g", name),
        lambda: paths.rewind(name, 1),
    ]
    for make in makers:
        with pytest.raises(InvalidNameError):
            make()


def test_numbers_are_not_negative() -> None:
    with pytest.raises(InvalidRequestError, match="got -1"):
        paths.broker(-1)
    with pytest.raises(InvalidRequestError, match="got -1"):
        paths.offset("g", TopicPartition("t", -1))


@pytest.mark.parametrize(
    ("name", "number"),
    [("0", 0), ("12", 12), ("0000000012", 12), ("", None), ("-1", None), ("x", None), ("٣", None)],
)
def test_a_number_in_a_name(name: str, number: int | None) -> None:
    assert paths.number_of(name) == number


def test_a_path_comes_apart() -> None:
    assert parent_of("/brokers/topics/a") == "/brokers/topics"
    assert name_of("/brokers/topics/a") == "a"
