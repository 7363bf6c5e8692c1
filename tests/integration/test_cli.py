"""The verbs against a real cluster, as a user types them, right and wrong."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_logbus.cli import main
from spark_logbus.client import Consumer, ConsumerConfig
from spark_logbus.coordination.group_offsets import GroupOffsets
from spark_logbus.coordination.group_owners import GroupOwnership
from spark_logbus.model import TopicPartition
from spark_logbus.zookeeper import Session
from tests.helpers import wait_until
from tests.servers.spark import Logbus


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def refusal(self) -> str:
        """The one message of a command that failed."""
        assert self.code == 1, self
        assert self.out == ""
        assert "Traceback" not in self.err
        lines = self.err.splitlines()
        assert len(lines) == 1, lines
        assert lines[0].startswith("Error: ")
        return lines[0]


Command = Callable[..., Ended]


@pytest.fixture
def command(
    logbus: Logbus, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    """Runs ``logbus <words>`` in this process, against the cluster of the tests."""
    monkeypatch.setenv("LOGBUS_ZOOKEEPER", logbus.zookeeper)
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(*words: str, stdin: bytes = b"") -> Ended:
        monkeypatch.setattr(sys, "argv", ["logbus", *words])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            main()
        sys.stdout.flush()
        shown = capfd.readouterr()
        code = ended.value.code
        return Ended(code if isinstance(code, int) else 0, shown.out, shown.err)

    return run


@pytest.fixture
def topic(logbus: Logbus) -> str:
    """Two partitions: a, b, c at offsets 0 to 2 of partition 0, d at 0 of partition 1."""
    name = logbus.topic(partitions=2)
    logbus.produce(name, ["a", "b", "c"], partition=0, timestamp_us=1_000_000)
    logbus.produce(name, ["d"], partition=1, timestamp_us=2_000_000)
    return name


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
    assert re.search(r"t1 +3 +0 +0 +0\n", listed)
    assert re.match(r"TOPIC +PARTITIONS  OFFSETS +SIZE-BYTES  OFFLINE\n", listed)  # not records
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
    assert {"topic": "m1", "partitions": 5, "offsets": 0, "size_bytes": 0, "offline": 0} in listed
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
    ],
)
def test_topics_that_cannot_be_created(command: Command, words: list[str], named: str) -> None:
    assert named in command("topics", "create", *words).refusal


# -- produce and consume ------------------------------------------------------------------


def test_lines_with_keys_from_a_file(command: Command, logbus: Logbus, tmp_path: Path) -> None:
    name = logbus.topic()
    lines = tmp_path / "lines"
    lines.write_bytes(b"k=1\nno key\r\n\n=x=y\nlast")
    done = command("produce", name, str(lines), "--key-separator", "=")
    assert done.out == ""
    assert re.fullmatch(
        rf"Published 5 records to {name} in \d+\.\d s\.\n"
        r"3 of 5 lines do not have the key separator '=', and no key: the first is line 2\.\n",
        done.err,
    )
    shown = command("consume", name, "--metadata").out.splitlines()
    columns = [line.split("\t") for line in shown]
    assert [(c[0], c[1], c[3], c[4]) for c in columns] == [
        ("0", "0", "k", "1"),
        ("0", "1", "-", "no key"),
        ("0", "2", "-", ""),
        ("0", "3", "", "x=y"),
        ("0", "4", "-", "last"),
    ]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", columns[0][2])


def test_separators_as_people_type_them(command: Command, logbus: Logbus) -> None:
    name = logbus.topic()
    pairs = (("\\t", b"a\tb"), ("\t", b"c\td"), ("\\x7c", b"e|f"), ("\\\\", b"g\\h"))
    for typed, line in (*pairs, ("\\xff", b"i\xffj")):  # a byte, not a letter
        assert command("produce", name, "--key-separator", typed, stdin=line).code == 0
    shown = command("consume", name, "--metadata").out.splitlines()
    assert [line.split("\t")[3:] for line in shown] == [[*"ab"], [*"cd"], [*"ef"], [*"gh"], [*"ij"]]
    for typed in ("", "\\q", "\\x4", "\\", "\\x0a"):
        refused = command("produce", name, "--key-separator", typed, stdin=b"x\n").refusal
        assert f"--key-separator is {typed!r}; " in refused


def test_a_separator_that_no_line_has(command: Command, logbus: Logbus) -> None:
    name = logbus.topic()
    done = command("produce", name, "--key-separator", "\\t", stdin=b"a:1\nb:2\n")
    assert done.code == 1
    published, error = done.err.splitlines()
    assert published.startswith("Published 2 records")
    assert error.startswith(r"Error: No line has the key separator '\t'")
    assert command("produce", name, "--key-separator", ":").code == 0, "there was no line"


def test_what_is_given_for_all_records(command: Command, logbus: Logbus, tmp_path: Path) -> None:
    name = logbus.topic(partitions=2)
    shown = ["consume", name, "-f", r"%p|%k|%S|%s|%h|%T\n"]
    all_of_them = [
        "-k",
        "key",
        "-H",
        "a=1",
        "-H",
        "b",
        "-p",
        "1",
        "--timestamp",
        "1970-01-01T00:01Z",
    ]
    assert command("produce", name, *all_of_them, "-Z", stdin=b"x\n\n").code == 0
    assert command(*shown).out == "1|key|1|x|a=1,b=NULL|60000\n1|key|-1||a=1,b=NULL|60000\n"
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"1\n2\n")
    two.write_bytes(b"\0")
    start = ["-o", "2", "-p", "1", "-f", "%S,"]
    command(
        "produce", name, str(one), str(two), "--whole-files", "-p", "1", "--compression", "zstd"
    )
    assert command("consume", name, *start).out == "4,1,"
    command("produce", name, "-D", r"\0", "-p", "1", stdin=b"a\nb\0c")
    assert command("consume", name, "-o", "4", "-p", "1", "-f", "[%s]").out == "[a\nb][c]"


def test_json_there_and_back(command: Command, logbus: Logbus) -> None:
    name, copy = logbus.topic(), logbus.topic()
    lines = (
        '{"key": "k", "value": "é", "headers": {"a": "1"}, "timestamp_us": 5}\n'
        '{"value": {"base64": "/w=="}}\n{"value": null, "key": ""}\n'
    )
    assert "Published 3 records" in command("produce", name, "-J", stdin=lines.encode()).err
    first = command("consume", name, "-J").out
    assert command("produce", copy, "-J", stdin=first.encode()).code == 0
    assert command("consume", copy, "-J").out == first.replace(name, copy)
    three = b'{"value": "x"}\n{"value": 7}\n{"value": "y"}\n'
    wrong = command("produce", name, "-J", stdin=three).refusal
    assert "Line 2 of standard input cannot be published. Its value is 7" in wrong
    assert wrong.endswith("Published before it: 1 record.")
    assert sum(logbus.ends(name).values()) == 4
    beyond = command("produce", name, "-p", "7", stdin=b"x\n").refusal
    assert "Line 1 of standard input cannot be published" in beyond


def test_an_interrupted_producer_tells_what_was_published(logbus: Logbus) -> None:
    name = logbus.topic()
    command = [sys.executable, "-m", "spark_logbus.cli", "produce", name, "-z", logbus.zookeeper]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"a\nb\nc\n")
        process.stdin.flush()
        wait_until(lambda: sum(logbus.ends(name).values()) == 3, message="three records")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr is not None
        told = process.stderr.read().decode()
    assert re.fullmatch(rf"Interrupted: published 3 records to {name} in \d+\.\d s\.\n", told)


def test_lines_from_standard_input(command: Command, logbus: Logbus) -> None:
    name = logbus.topic()
    command("produce", name, stdin=b"1\n2\n")
    assert "Published 0 records" in command("produce", name).err
    assert command("consume", name).out == "1\n2\n"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "a\nb\nc\nd\n"),
        (["--partition", "1"], "d\n"),
        (["--max", "2"], "a\nb\n"),
        (["--max", "4"], "a\nb\nc\nd\n"),
        (["--start", "latest"], ""),
        (["--start", "-2 records"], "b\nc\nd\n"),
        (["--start", "-36500 days"], "a\nb\nc\nd\n"),
        (["--start", "-1 hour"], ""),  # the records are of 1970
        (["--start", "2"], "c\n"),  # partition 1 ends before it
        (["--start", "3", "--partition", "0"], ""),  # its end
        (["--follow", "--max", "2", "--partition", "0"], "a\nb\n"),
        (["-o", "1970-01-01T00:00:02Z", "-p", "0"], ""),
        (["-o", "1970-01-01", "-n", "1", "-f", r"%p@%o:%S\n"], "0@0:1\n"),
    ],
)
def test_what_is_consumed(command: Command, topic: str, options: list[str], expected: str) -> None:
    assert command("consume", topic, *options) == Ended(0, expected, "")


def test_several_topics_are_consumed(command: Command, logbus: Logbus, topic: str) -> None:
    other = logbus.topic(name=f"{topic}-other")
    logbus.produce(other, ["x", None])
    lines = command("consume", topic, other, "--json").out.splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["value"] for record in records] == ["a", "b", "c", "d", "x", None]
    assert {record["topic"] for record in records} == {topic, other}
    assert command("consume", "-r", f"{topic}.*", "-f", "%s").out == "abcdx"
    assert command("consume", "-F", "-n", "5", topic, other, "-f", "%s").out.count("x") <= 1
    assert "No topic matches no-such.*" in command("consume", "-r", "no-such.*").refusal
    assert "is no regular expression" in command("consume", "-r", "(").refusal
    assert "--format has '%q'" in command("consume", topic, "-f", "%q").refusal
    assert "Choose one of" in command("consume", topic, "-f", "%s", "--json").refusal


def test_a_group_consumes_each_record_once(command: Command, logbus: Logbus, topic: str) -> None:
    group = f"cli-{topic}"
    first = command("consume", topic, "-g", group, "-n", "2")
    rest = command("consume", topic, "-g", group)
    assert sorted((first.out + rest.out).split()) == [*"abcd"]
    assert len(first.out.split()) == 2
    assert command("consume", topic, "-g", group) == Ended(0, "", "")
    logbus.produce(topic, ["e"])
    assert command("consume", topic, "-g", group, "-F", "-n", "1").out == "e\n"
    refused = command("consume", topic, "-g", group, "-p", "1").refusal
    assert "leave out --partition or --group" in refused


def test_wrong_input_of_consume(command: Command, topic: str) -> None:
    assert "no no-such; it has: " in command("consume", "no-such").refusal
    wrong = command("consume", topic, "--partition", "9").refusal
    assert f"no {topic}-9; it has: {topic}-0, {topic}-1." in wrong
    assert (
        "'soon'; use earliest, latest, an offset"
        in command("consume", topic, "--start", "soon").refusal
    )
    unit = command("consume", topic, "--start", "-5 fortnights").refusal
    assert "--start: expected a number and a unit" in unit
    beyond = command("consume", topic, "--start", "4").refusal
    assert f"--start is 4, but the last offset is 2 ({topic}-0: 3, {topic}-1: 1)" in beyond


def test_wrong_input_of_produce(command: Command, topic: str, tmp_path: Path) -> None:
    assert "no topic 'no-such'; create it" in command("produce", "no-such", stdin=b"x\n").refusal
    assert "no topic 'no-such'; create it" in command("produce", "no-such").refusal
    missing = tmp_path / "missing"
    assert f"Cannot read {missing}: No such file" in command("produce", topic, str(missing)).refusal
    assert "Is a directory" in command("produce", topic, str(tmp_path)).refusal
    assert "none, lz4 or zstd" in command("produce", topic, "--compression", "gzip").refusal
    assert "leave out" in command("produce", topic, "--json", "-K", ":").refusal
    assert "Name the files" in command("produce", topic, "--whole-files").refusal
    assert (
        "'all'; use none, written or flushed" in command("produce", topic, "--acks", "all").refusal
    )


def test_a_reader_that_has_enough(logbus: Logbus) -> None:
    """As ``logbus consume ... | head -1``: no message, though most is never read."""
    name = logbus.topic()
    logbus.produce(name, [f"record {number} {'x' * 100}" for number in range(20_000)])
    process = subprocess.Popen(
        [sys.executable, "-m", "spark_logbus.cli", "consume", name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "LOGBUS_ZOOKEEPER": logbus.zookeeper},
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"record 0 ")
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


# -- groups -------------------------------------------------------------------------------


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
    """Also where the group's offsets are of an earlier topic of that name."""
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


def test_wrong_input_of_groups(command: Command, topic: str) -> None:
    assert (
        "'nobody' has committed no offsets; groups that have: "
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


# -- all verbs ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["no-such-verb"],
        ["topics", "create"],
        ["topics", "create", "x", "--partitions", "0"],
        ["topics", "create", "x", "--partitions", "many"],
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


@pytest.mark.parametrize("address", ["", "a b", "host:port", "localhost:2181/../x"])
def test_addresses_that_are_none(command: Command, address: str) -> None:
    assert repr(address) in command("topics", "list", "--zookeeper", address).refusal


def test_an_address_without_a_cluster_is_told_at_once(
    command: Command, logbus: Logbus, chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as placeholder:
        placeholder.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{placeholder.getsockname()[1]}"
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
