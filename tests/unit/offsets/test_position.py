"""What users write for positions, and what comes of it."""

from __future__ import annotations

import pytest

from spark_logbus.errors import InvalidOptionError
from spark_logbus.model import AtOffset, Earliest, LastDuration, LastRecords, Latest, TopicPartition
from spark_logbus.offsets.position import (
    Committed,
    PerPartition,
    Positions,
    parse_assignment,
    parse_positions,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", Earliest()),
        (" Latest ", Latest()),
        ("COMMITTED", Committed()),
        ('{"t":{"1":-2,"0":23}}', PerPartition(((T0, AtOffset(23)), (T1, Earliest())))),
        ("-1000", LastRecords(1000)),
        ("-1 record", LastRecords(1)),
        ("- 2 Records", LastRecords(2)),
        ("-10 minutes", LastDuration(600_000_000)),
        ("-1d", LastDuration(86_400_000_000)),
        ('{"t":{"0":-1}}', PerPartition(((T0, Latest()),))),
        ('{"t":{"0":0}}', PerPartition(((T0, AtOffset(0)),))),
        (
            '{"b":{"0":1},"a":{"10":2,"9":3}}',
            PerPartition(
                (
                    (TopicPartition("a", 9), AtOffset(3)),
                    (TopicPartition("a", 10), AtOffset(2)),
                    (TopicPartition("b", 0), AtOffset(1)),
                )
            ),
        ),
    ],
)
def test_positions(text: str, expected: Positions) -> None:
    assert parse_positions(text, option="startingOffsets") == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("newest", "'newest'"),
        ("-2", "earliest or latest, or '-2 records'"),
        ("-10 parsecs", "'10 parsecs'"),
        ("-40000 days", "a hundred years"),
        ("-", "''"),
        ("{", "not valid JSON"),
        ("{}", "at least one topic"),
        ('{"t":{}}', "topic t"),
        ('{"t":[1]}', "topic t"),
        ('{"t":{"0":-3}}', "t-0, got -3"),
        ('{"t":{"0":1.5}}', "t-0, got 1.5"),
        ('{"t":{"0":true}}', "t-0, got true"),
        ('{"t":{"0":"5"}}', 't-0, got "5"'),
        ('{"t":{"x":5}}', "'x'"),
        ('{"t":{"-1":5}}', "'-1'"),
        ('{"t":{"0":9223372036854775808}}', "9223372036854775808"),
    ],
)
def test_unusable_positions_name_the_option_and_the_place(text: str, said: str) -> None:
    with pytest.raises(InvalidOptionError, match="startingOffsets") as raised:
        parse_positions(text, option="startingOffsets")
    assert said in raised.value.message


def test_assignment() -> None:
    assert parse_assignment('{"t":[1,0,1]}', option="assign") == (T0, T1)


@pytest.mark.parametrize(
    "text", ["t", "[]", "{}", '{"t":0}', '{"t":[]}', '{"t":[-1]}', '{"t":["0"]}']
)
def test_unusable_assignments(text: str) -> None:
    with pytest.raises(InvalidOptionError, match="assign"):
        parse_assignment(text, option="assign")
