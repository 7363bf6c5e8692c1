"""``logbus mirror`` as people and programs use it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from spark_logbus.coordination.groups.offsets import GroupOffsets
from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper import Session
from tests.integration.mirror.mirrored import Pair, assert_equal, copy_all, two_clusters
from tests.servers.command import Command, command_at
from tests.servers.spark_processes import environment


@pytest.fixture(scope="module")
def pair(zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_clusters(zookeeper.address, tmp_path_factory.mktemp("clusters")) as clusters:
        yield clusters


@pytest.fixture
def command(
    pair: Pair, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    """Runs ``logbus mirror <words>`` in this process, for the target."""
    return partial(command_at(pair.target_zookeeper, capfd, monkeypatch), "mirror")


def mirror(pair: Pair, *words: str) -> list[dict[str, Any]]:
    """The lines of JSON of a mirror in a process of its own, which signals end."""
    done = subprocess.run(
        [
            sys.executable, "-m", "spark_logbus.cli", "mirror", "--once", "--json",
            "--from", pair.source_zookeeper, "-z", pair.target_zookeeper, *words,
        ],
        env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_rounds_and_lag_are_told_as_json(pair: Pair) -> None:
    topic = pair.topic(partitions=2)
    pair.produce(topic, 500)
    words = ("--topics", topic, "--name", topic, "--round-bytes", "8000")
    rounds = mirror(pair, *words)
    assert [each["round"] for each in rounds] == list(range(1, len(rounds) + 1))
    assert sum(each["round_records"] for each in rounds) == rounds[-1]["records"] == 500
    assert rounds[0]["lag"] > 0
    assert rounds[0]["behind_us"] > 0
    assert (rounds[-1]["lag"], rounds[-1]["behind_us"]) == (0, 0)
    assert {each["position"] - each["end"] for each in rounds[-1]["partitions"]} == {0}
    assert_equal(pair, topic)
    [nothing] = mirror(pair, *words)
    assert (nothing["round"], nothing["records"], nothing["lag"]) == (None, 0, 0)


def words_of(shown: str) -> list[str]:
    """The lines with one space between words: columns are as wide as a topic's name."""
    return [" ".join(line.split()) for line in shown.splitlines()]


def test_the_state_and_a_group_are_shown(pair: Pair, command: Command) -> None:
    topic = pair.topic(partitions=1)
    pair.produce(topic, 60)
    with pair.mirror(topic, name="shown", rename="copy.{topic}") as opened:
        copy_all(opened)
    assert words_of(command("status", "--name", "shown").out) == [
        "TOPIC PARTITION COPY POSITION TARGET-OFFSET",
        f"{topic} 0 copy.{topic} 60 60",
    ]
    assert command("status", "--name", "another").err == (
        "The mirror another has copied nothing yet.\n"
    )
    with Session(pair.source_zookeeper, client_name="test") as session:
        at = TopicPartition(topic, 0)
        GroupOffsets(session).commit("billing", {at: 25}, actor="test")
    words = ("offsets", "billing", "--from", pair.source_zookeeper, "--name", "shown")
    dry = command(*words)
    assert words_of(dry.out) == [
        "TOPIC PARTITION COMMITTED COPY NEW INEXACT NOT-COPIED",
        f"{topic} 0 25 copy.{topic} 25 - 0",
        "Dry run: nothing was changed; add --execute to do it.",
    ]
    assert command(*words, "--execute").out.splitlines()[-1] == (
        "Committed for group billing in 1 partition."
    )
    with Session(pair.target_zookeeper, client_name="test") as session:
        there = GroupOffsets(session).committed("billing")
    assert {each: entry.offset for each, entry in there.items()} == {
        TopicPartition(f"copy.{topic}", 0): 25
    }


def test_a_topic_is_forgotten_by_who_says_yes(pair: Pair, command: Command) -> None:
    topic = pair.topic(partitions=1)
    with pair.mirror(topic, name="forgetful") as opened:
        copy_all(opened)
        refused = command("forget", topic, "--name", "forgetful", "--yes").refusal
        assert "locked by a mirror of" in refused
    assert command("forget", topic, "--name", "forgetful").code == 1  # nobody says yes
    assert command("forget", topic, "--name", "forgetful", "--yes").out == (
        f"Mirror forgetful knows nothing of {topic} any more.\n"
    )
    assert "has copied nothing of the topic" in command(
        "forget", topic, "--name", "forgetful", "--yes"
    ).refusal  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "Say where to copy from, once: --from"),
        (("--from", "a:1/b", "--from-kafka", "a:1"), "Say where to copy from, once"),
        (("--from", "a:1/b"), "Say which topics, once: --topics clicks,views, or --pattern"),
        (("--from", "a:1/b", "--topics", "a", "--pattern", "b"), "Say which topics, once"),
        (("--from", "a:1/b", "--topics", "a,,b"), "'' cannot name a topic"),
        (("--from", "a:1/b", "--pattern", "("), "'(' is no regular expression"),
        (("--from", "a:1/b", "--topics", "a", "--rename", "b"), "write {topic} in it"),
        (("--from", "a:1/b", "--topics", "a", "--name", "a/b"), "cannot name a mirror"),
        (("offsets", "g"), "Say where to copy from, once"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    command: Command, words: tuple[str, ...], message: str
) -> None:
    assert message in command(*words).refusal
