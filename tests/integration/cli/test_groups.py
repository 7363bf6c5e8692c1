"""``logbus groups`` against a real cluster, as a user types it."""

from __future__ import annotations

import json
import re

import pytest

from spark_logbus.client import Consumer, ConsumerConfig
from spark_logbus.coordination.groups.offsets import GroupOffsets
from spark_logbus.coordination.groups.topic_owners import GroupOwnership
from spark_logbus.errors import InvalidRequestError
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper import Session
from tests.helpers import wait_until
from tests.servers.cluster import Logbus
from tests.servers.command import Command, Ended
from tests.servers.zookeeper import put


def rewound(shown: str) -> dict[int, int]:
    """The column ``NEW`` of a rewind's table, per partition."""
    head, *rows = [line.split() for line in shown.splitlines()]
    return {
        int(row[head.index("PARTITION")]): int(row[head.index("NEW")])
        for row in rows
        if len(row) == len(head)
    }


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (["--to-offset", "1"], {0: 1, 1: 1}),
        (["--to-time", "1970-01-01T00:00:02Z"], {0: 3, 1: 0}),
        (["--by-duration", "36500d"], {0: 0, 1: 0}),
        (["--by-count", "2"], {0: 1, 1: 0}),
        (["--to-earliest"], {0: 0, 1: 0}),
        (["--to-latest"], {0: 3, 1: 1}),
    ],
)
def test_rewinds(
    command: Command, logbus: Logbus, topic: str, target: list[str], expected: dict[int, int]
) -> None:
    group = f"group-of-{topic}"
    logbus.rewind(group, {TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 1})
    dry = command("groups", "rewind", group, *target)
    assert rewound(dry.out) == expected
    assert "Nothing was changed; add --execute to do it." in dry.out
    assert set(logbus.committed(group).values()) == {3, 1}
    done = command("groups", "rewind", group, *target, "--execute")
    assert rewound(done.out) == expected
    again = 4 - sum(expected.values())
    noun = "record" if again == 1 else "records"
    assert f"Rewind 2 of group {group} is recorded: {again} {noun} will be read again." in done.out
    assert {
        topic_partition.partition: at for topic_partition, at in logbus.committed(group).items()
    } == expected


def test_a_rewind_says_where_the_log_cuts_it(command: Command, topic: str) -> None:
    done = command("groups", "rewind", "new-group", "--topic", topic, "--to-offset", "2")
    assert re.search(r"\*\n", done.out)
    assert "* cut to what the log holds" in done.out


def test_the_consumers_of_a_group_are_described(
    command: Command, logbus: Logbus, topic: str
) -> None:
    group = f"g-{topic}"
    config = ConsumerConfig(group=group, zookeeper=logbus.zookeeper, auto_commit_ms=0)
    with Consumer(logbus.cluster, config) as one, Consumer(logbus.cluster, config) as two:
        one.subscribe(topic)
        two.subscribe(topic)

        def read() -> bool:
            for consumer in (one, two):
                consumer.poll_arrow(0.05)
            return one.position(one.assignment[0]) > 0 if len(two.assignment) == 1 else False

        wait_until(read)
        one.commit()
        shown = command("groups", "describe", group).out
        assert f"2 consumers share group {group}." in shown
        listed = [json.loads(line) for line in command("groups", "list", "--json").out.splitlines()]
        assert [line["members"] for line in listed if line["group"] == group] == [2]
        described = json.loads(command("groups", "describe", group, "--json").out)
        assert len(described["members"]) == 2
        readers = {row["partition"]: row["consumer"] for row in described["partitions"]}
        assert set(readers.values()) == {member["name"] for member in described["members"]}
        own = one.assignment[0].partition
        [mine] = [row for row in described["partitions"] if row["partition"] == own]
        assert mine["lag"] == 0
        refused = command("groups", "delete", group, "--yes").refusal
        assert "has 2 live members" in refused
    assert "No running query or consumer" in command("groups", "describe", group).out


def test_a_group_is_listed_and_described(command: Command, logbus: Logbus, topic: str) -> None:
    logbus.rewind("readers", {TopicPartition(topic, 0): 1, TopicPartition("gone", 0): 7})
    with Session(logbus.zookeeper, client_name="test") as session:
        ownership = GroupOwnership(session, "readers", pid=4711, application="nightly")
        ownership.acquire([topic])
        held = command("groups", "describe", "readers").out
        assert re.search(rf"Topic {topic} is held by application nightly, process 4711 on ", held)
        assert "4711 on " in command("groups", "list").out
        as_json = json.loads(command("groups", "describe", "readers", "--json").out)
        assert as_json["holders"][topic]["pid"] == 4711
    assert "No running query or consumer holds" in command("groups", "describe", "readers").out
    assert {"gone", topic} == {row["topic"] for row in as_json["partitions"]}
    mine = next(row for row in as_json["partitions"] if row["topic"] == topic)
    assert (mine["committed"], mine["high_watermark"], mine["lag"]) == (1, 3, 2)
    assert as_json["rewinds"][0]["why"] == "test"
    lines = [json.loads(line) for line in command("groups", "list", "--json").out.splitlines()]
    assert [line["rewinds"] for line in lines if line["group"] == "readers"] == [1]
    assert re.search(rf"readers +gone,{topic} +2 +1 ", command("groups", "list").out)
    described = command("groups", "describe", "readers").out
    assert re.search(rf"{topic} +0 +1 +3 +2 +\d+(?:s|min) .* ok\n", described)
    assert re.search(r"gone +0 +7 +- +- .* topic deleted\n", described)
    assert re.search(r"Rewind 1 by test at .* UTC: \(test\); .*gone-0: 7", described)


def test_a_rewind_is_recorded_with_its_reason_and_its_topic(
    command: Command, logbus: Logbus, topic: str
) -> None:
    """Holds where the group's offsets are of an earlier topic of that name, too."""
    topic_partition = TopicPartition(topic, 0)
    with Session(logbus.zookeeper, client_name="test") as session:
        GroupOffsets(session).commit(
            "moved", {topic_partition: 9}, actor="x", topic_ids={topic: "earlier"}
        )
    assert "topic recreated" in command("groups", "describe", "moved").out
    done = command("groups", "rewind", "moved", "--to-offset", "2", "--why", "a bad deploy")
    assert "Nothing was changed" in done.out
    command("groups", "rewind", "moved", "--to-offset", "2", "--why", "a bad deploy", "--execute")
    described = command("groups", "describe", "moved").out
    assert re.search(r"Rewind 1 by \S+ at .* UTC: to offset 2 \(a bad deploy\)", described)
    assert re.search(rf"{topic} +0 +2 +3 +1 ", described)


def test_a_rewind_counts_present_records_and_skips_deleted_topics(
    command: Command, logbus: Logbus, topic: str
) -> None:
    """A topic of 3 and 1 records, made anew after the group had committed 9, and one that is
    gone."""
    topic_partition, gone, group = (
        TopicPartition(topic, 0),
        TopicPartition("gone", 0),
        f"clear-{topic}",
    )
    with Session(logbus.zookeeper, client_name="test") as session:
        ids = {topic: "earlier", "gone": "gone"}
        GroupOffsets(session).commit(group, {topic_partition: 9, gone: 7}, actor="x", topic_ids=ids)
    done = command("groups", "rewind", group, "--to-earliest")
    assert "Dry run: 4 records will be read again." in done.out
    assert f"Topic {topic} was deleted and created again since" in " ".join(done.out.split())
    assert "Topic gone was deleted and is left out" in " ".join(done.out.split())
    done = command("groups", "rewind", group, "--to-earliest", "--execute")
    assert "4 records will be read again." in done.out
    assert logbus.committed(group) == {topic_partition: 0, TopicPartition(topic, 1): 0, gone: 7}
    command("groups", "forget", group, "--topic", "gone", "--yes")
    assert set(logbus.committed(group)) == {topic_partition, TopicPartition(topic, 1)}
    assert "had committed no" in command("groups", "forget", group, "--topic", "gone", "--yes").out
    assert f"Group {group} is deleted." in command("groups", "delete", group, "--yes").out
    assert logbus.committed(group) == {}
    assert "has committed no offsets" in command("groups", "delete", group, "--yes").refusal


def test_a_rewind_of_deleted_topics_only_is_refused(command: Command, logbus: Logbus) -> None:
    gone = TopicPartition("gone", 0)
    with Session(logbus.zookeeper, client_name="test") as session:
        GroupOffsets(session).commit("all-gone", {gone: 7}, actor="x", topic_ids={"gone": "gone"})
    for execute in ([], ["--execute"]):
        done = command("groups", "rewind", "all-gone", "--to-earliest", *execute)
        assert "covers no partition" in done.refusal
    assert logbus.committed("all-gone") == {gone: 7}


def test_a_group_in_use_is_kept_whoever_is_to_clear_it(
    command: Command, logbus: Logbus, topic: str
) -> None:
    group, positions = f"held-{topic}", {TopicPartition(topic, 0): 1}
    logbus.rewind(group, positions)
    with Session(logbus.zookeeper, client_name="test") as session:
        GroupOwnership(session, group, pid=4711, application="nightly").acquire([topic])
        told = f"in use for topic {topic} (application nightly, process 4711 on "
        for words, clear in (
            (["delete", group], lambda: logbus.admin.delete_group(group)),
            (["forget", group, "-t", topic], lambda: logbus.admin.forget_offsets(group, [topic])),
        ):
            refusal = command("groups", *words, "--yes").refusal
            assert told in refusal
            assert "; stop that query before" in refusal
            with pytest.raises(InvalidRequestError) as refused:
                clear()
            assert refusal == f"Error: {refused.value}"
        assert logbus.committed(group) == positions
    assert command("groups", "delete", group, "--yes").out == f"Group {group} is deleted.\n"


def test_a_group_that_cannot_be_read_is_left_out_of_the_list(command: Command, chroot: str) -> None:
    with Session(chroot, client_name="test") as session:
        for group in ("a", "b", "c"):
            GroupOffsets(session).commit(group, {TopicPartition("t", 0): 1}, actor="x")
    put(chroot, "/consumers/b/offsets/t/0", b"12")
    listed = command("groups", "list", "-z", chroot, "--json")
    assert listed.code == 0
    assert [json.loads(line)["group"] for line in listed.out.splitlines()] == ["a", "c"]
    [told] = listed.err.splitlines()
    assert told.startswith("Group b is left out. The ZooKeeper node /consumers/b/offsets/t/0 does")
    assert (
        "The ZooKeeper node /consumers/b/offsets/t/0 does not hold what logbus wrote there"
        in command("groups", "forget", "b", "-t", "t", "--yes", "-z", chroot).refusal
    )
    assert command("groups", "delete", "b", "--yes", "-z", chroot).code == 0


def test_groups_are_listed_and_cleared_while_no_broker_runs(command: Command, chroot: str) -> None:
    with Session(chroot, client_name="test") as session:
        for group in ("a", "b"):
            GroupOffsets(session).commit(
                group, {TopicPartition("t", 0): 1, TopicPartition("u", 0): 1}, actor="x"
            )
    at = ("-z", chroot)
    assert [line.split()[:3] for line in command("groups", "list", *at).out.splitlines()[1:]] == [
        ["a", "t,u", "2"],
        ["b", "t,u", "2"],
    ]
    forgotten = command("groups", "forget", "a", "-t", "u", "-t", "v", "-t", "u", "--yes", *at)
    assert forgotten.out == (
        "Group a has no offsets for topic u any more.\n"
        "Group a had committed no offsets for topic v.\n"
    )
    assert command("groups", "delete", "a", "b", "a", "--yes", *at).out == (
        "Group a is deleted.\nGroup b is deleted.\n"
    )
    assert command("groups", "list", *at).out == ""
    assert (
        "Group 'a' has committed no offsets, and there is no other group. A consumer, query or "
        in command("groups", "delete", "a", "--yes", *at).refusal
    )


def test_a_group_that_never_committed_is_described(
    command: Command, logbus: Logbus, topic: str
) -> None:
    group = f"idle-{topic}"
    config = ConsumerConfig(group=group, zookeeper=logbus.zookeeper, auto_commit_ms=None)
    with Consumer(logbus.cluster, config) as consumer:
        consumer.subscribe(topic)

        def shares_all() -> bool:
            consumer.poll_arrow(0.05)
            return len(consumer.assignment) == 2

        wait_until(shares_all)
    assert group in command("groups", "list").out
    described = command("groups", "describe", group)
    assert described == Ended(0, f"No running query or consumer holds group {group}.\n", "")
    told = command("groups", "forget", group, "-t", topic, "--yes").refusal
    assert f"Group {group!r} has committed no offsets" in told
    assert group not in told.partition("other group")[2]


def test_wrong_input_of_groups(command: Command, topic: str) -> None:
    assert (
        "'nobody' has committed no offsets; other groups: "
        in command("groups", "describe", "nobody").refusal
    )
    assert (
        "'nobody' has committed no offsets"
        in command("groups", "rewind", "nobody", "--to-earliest").refusal
    )
    assert (
        "no topic no-such"
        in command("groups", "rewind", "nobody", "--topic", "no-such", "--to-earliest").refusal
    )
    assert "'a/b' cannot name a group" in command("groups", "describe", "a/b").refusal
    assert "got 0 of them" in command("groups", "rewind", "nobody", "--topic", topic).refusal
