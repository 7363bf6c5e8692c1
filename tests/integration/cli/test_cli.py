"""The verbs against a real cluster, as a user types them, right and wrong: topics, and what is the
same for all verbs."""

from __future__ import annotations

import json
import re

import pytest

from spark_logbus.model import TopicPartition
from tests.servers.cluster import Logbus
from tests.servers.command import Command, Ended
from tests.servers.ports import refusing_address

# -- topics -------------------------------------------------------------------------------


def test_a_topic_is_altered(command: Command, logbus: Logbus) -> None:
    name = logbus.topic(segment_ms="60000")
    done = command("topics", "alter", name, "--set", "flush.ms=50", "--unset", "segment.ms",
                   "--partitions", "2")  # fmt: skip
    assert done.code == 0
    assert [line.split() for line in done.out.splitlines()] == [
        ["SETTING", "BEFORE", "NOW"],
        ["flush.ms", "default", "50"],
        ["retention.ms", "-1", "-1"],
        ["segment.ms", "60000", "default"],
        ["partitions", "1", "2"],
    ]
    assert "Keys may go to other partitions" in done.err
    shown = command("topics", "describe", name).out
    assert re.search(rf"{name} +flush.ms +50 +- +topic\n", shown)
    assert re.search(rf"{name} +segment.ms +604800000 +7d +default\n", shown)
    refused = command("topics", "alter", name, "--unset", "flush.sm").refusal
    assert "did you mean 'flush.ms'" in refused
    refused = command("topics", "alter", name, "--set", "retention.sm=5").refusal
    assert "did you mean retention.ms" in refused
    assert command("topics", "alter", name).code == 2


def test_a_shorter_retention_asks_first(command: Command, topic: str) -> None:
    asked = command("topics", "alter", topic, "--set", "retention.ms=60000")
    assert asked.code == 1, "there was nobody to say yes"
    assert "4 records at most, older than retention.ms=60000" in asked.err
    assert re.search(r"retention.ms +-1 +none +topic", command("topics", "describe", topic).out)
    asked = command("topics", "alter", topic, "--set", "retention.bytes=1", "--yes")
    assert asked.code == 0
    assert "beyond retention.bytes=1" in asked.err
    assert command("topics", "alter", topic, "--set", "retention.ms=9000000000000").code == 0


def test_a_topic_from_creation_to_deletion(command: Command) -> None:
    made = command("topics", "create", "t1", "--partitions", "3", "--config", "retention.ms=-1")
    assert made == Ended(0, "Topic t1 is ready with 3 partitions.\n", "")
    assert "exists already, with 3 partitions" in command("topics", "create", "t1").refusal
    again = command("topics", "create", "t1", "--partitions", "5", "--if-not-exists")
    assert again.out == "Topic t1 is ready with 3 partitions.\n"  # not with 5
    listed = command("topics", "list").out
    assert re.search(r"t1 +3 +1 +0 +0 +0\n", listed)
    assert re.match(
        r"TOPIC +PARTITIONS  REPLICAS  OFFSETS +SIZE-BYTES  OFFLINE\n", listed
    )  # not records
    described = command("topics", "describe", "t1").out
    assert len(re.findall(r"t1 +\d +[12] +127\.0\.0\.1:\d+ +0 +0 +0 +ok\n", described)) == 3
    assert re.search(r"t1 +retention.ms +-1 +none +topic\n", described)
    assert command("topics", "delete", "t1", "--yes").out == "Topic t1 is deleted.\n"
    assert "no topic 't1'" in command("topics", "describe", "t1").refusal
    assert "no topic 't1'" in command("topics", "delete", "t1", "--yes").refusal


def test_several_topics_with_units_as_people_write_them(command: Command) -> None:
    made = command("topics", "create", "m1", "m2", "-p", "2", "-c", "retention.ms=7d",
                   "-c", "segment.bytes=64KiB")  # fmt: skip
    assert made.out.splitlines() == [f"Topic {name} is ready with 2 partitions." for name in
                                     ("m1", "m2")]  # fmt: skip
    shown = command("topics", "describe", "m1", "m2", "--json").out.splitlines()
    first, second = map(json.loads, shown)
    assert [first["topic"], second["topic"]] == ["m1", "m2"]
    assert first["settings"]["retention.ms"] == {"value": "604800000", "source": "topic"}
    assert second["settings"]["segment.bytes"] == {"value": "65536", "source": "topic"}
    assert second["settings"]["flush.policy"] == {"value": "logbus", "source": "default"}
    assert [each["high_watermark"] for each in first["partitions"]] == [0, 0]
    added = command("topics", "add-partitions", "m1", "-n", "3")
    assert added.out == "Topic m1 has 5 partitions, and had 2.\n"
    listed = [json.loads(line) for line in command("topics", "list", "-J").out.splitlines()]
    assert {
        "topic": "m1", "partitions": 5, "replicas": 1, "offsets": 0, "size_bytes": 0, "offline": 0
    } in listed  # fmt: skip
    assert command("topics", "delete", "m1", "m2", "-y").out.count("is deleted") == 2


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["bad/name"], "'bad/name' cannot name a topic; use letters"),
        (["x" * 300], "300 characters; use at most 249"),
        (["x", "--config", "retention.ms"], "--config takes key=value, got 'retention.ms'"),
        (["x", "--config", "no.such=1"], "no key 'no.such'; use "),
        (["x", "--config", "retention.ms=soon"], "retention.ms to 'soon'; set it to"),
        (["x", "--config", "retention.ms=7 fortnights"], "retention.ms to '7 fortnights'; set it"),
        (["x", "--config", "segment.bytes=64s"], "segment.bytes to '64s'; set it to"),
        (["x", "--replicas", "16"], "16 replicas of a partition: each is on a broker of its own"),
        (["x", "-r", "17"], "17 replicas of a partition; use 1 to 16"),
        (["x", "-c", "min.insync.replicas=2"], "is 2, and a partition of it has 1 replica"),
    ],
)
def test_topics_that_cannot_be_created(command: Command, words: list[str], named: str) -> None:
    assert named in command("topics", "create", *words).refusal


# -- all verbs ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["no-such-verb"],
        ["topics", "create"],
        ["topics", "create", "x", "--partitions", "0"],
        ["topics", "create", "x", "--partitions", "many"],
        ["topics", "create", "x", "--replicas", "0"],
        ["topics", "create", "x", "--replicas", "all"],
        ["consume", "x", "--max", "0"],
        ["consume", "x", "--max", "-1"],
        ["groups", "rewind", "g", "--to-offset", "-5"],
        ["groups", "rewind", "g", "--to-offset", str(2**63)],
        ["groups", "rewind", "g", "--by-count", "-1"],
        ["dump", "x", "--max", "0"],
        ["up", "--brokers", "0"],
        ["broker"],
    ],
)
def test_usage_errors(command: Command, words: list[str]) -> None:
    ended = command(*words)
    assert ended.code == 2
    assert "Usage: logbus" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    "name", ["", "a b", "a/b", "..", "ä", "*", "a\n", "[red]", "\x1b[31m", "\udcff"]
)
@pytest.mark.parametrize("noun", ["topic", "group"])
def test_names_that_none_can_have_are_refused_with_the_rule(
    command: Command, noun: str, name: str
) -> None:
    """The last is what becomes of a byte that is no text."""
    for verb in (["describe"], ["delete", "--yes"]):
        refusal = command(f"{noun}s", *verb, "--", name).refusal
        assert f"{name!r} cannot name a {noun}; use letters, digits, '.', '_' and '-'" in refusal
    too_long = command(f"{noun}s", "describe", "x" * 250).refusal
    assert f"The {noun} name starting with" in too_long
    assert "use at most 249" in too_long


def test_one_unknown_name_among_several_shows_nothing(
    command: Command, logbus: Logbus, topic: str
) -> None:
    logbus.rewind(f"g-{topic}", {TopicPartition(topic, 0): 1})
    told = command("topics", "describe", topic, "Nobody").refusal
    assert "no topic 'Nobody'; create it, or check the name" in told
    told = command("groups", "describe", f"g-{topic}", "Nobody").refusal
    assert "Group 'Nobody' has committed no offsets; other groups: " in told


@pytest.mark.parametrize("address", ["", "a b", "host:port", "localhost:2181/../x"])
def test_addresses_that_are_none(command: Command, address: str) -> None:
    assert repr(address) in command("topics", "list", "--zookeeper", address).refusal


@pytest.mark.long
def test_an_address_without_a_cluster_is_told_at_once(
    command: Command, logbus: Logbus, chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refusing_address() as address:
        for words in (["topics", "list"], ["groups", "list"], ["produce", "t"], ["consume", "t"]):
            told = command(*words, "-z", address).refusal
            assert f"Nothing listens at {address} (connection refused)." in told
        monkeypatch.setattr(
            "spark_logbus.zookeeper.connect_string.DEFAULT_CONNECT", address + "/logbus"
        )
        monkeypatch.setenv("LOGBUS_ZOOKEEPER", address)
        assert (
            "'logbus up', and use the line 'export LOGBUS_ZOOKEEPER=...'"
            in command("topics", "list").refusal
        )
    assert (
        f"no such chroot: /{chroot.partition('/')[2]}/typo."
        in command("topics", "list", "-z", f"{chroot}/typo").refusal
    )


def test_a_chroot_without_brokers(command: Command, chroot: str) -> None:
    refusal = command("topics", "list", "--zookeeper", chroot).refusal
    assert f"No broker is registered in ZooKeeper at {chroot}" in refusal
    empty = command("groups", "list", "--zookeeper", chroot)
    assert empty == Ended(0, "", "No consumer group has committed offsets.\n")
