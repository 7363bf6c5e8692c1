"""What a checkpoint says of a micro-batch's inputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_logbus.datasource.stream_offset import StreamOffset
from spark_logbus.model import TopicPartition
from spark_logbus.sink.checkpoint import planned_inputs

AT = TopicPartition("events", 0)


def offset(start: int, end: int, group: str | None = None) -> str:
    made = StreamOffset(start={AT: start}, to={AT: end}, topic_ids={"events": "id"}, group=group)
    return json.dumps(made.to_json())


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"q1"}')
    return tmp_path


def plan(checkpoint: Path, batch: int, *sources: str) -> None:
    lines = ["v1", json.dumps({"batchWatermarkMs": 0, "conf": {}}), *sources]
    (checkpoint / "offsets" / str(batch)).write_text("\n".join(lines))


def test_ends_are_told_as_starting_offsets_take_them(checkpoint: Path) -> None:
    plan(checkpoint, 3, offset(160, 200), '{"other":{"0":7}}', "-")
    found = planned_inputs(str(checkpoint), 3, query="q1")
    assert found is not None
    assert found.told == '{"events": {"0": 200}}; {"other":{"0":7}}; -'


@pytest.mark.parametrize(
    ("sources", "same"),
    [
        ([offset(160, 200), "7"], True),
        ([offset(160, 200, group="g"), "7"], True),  # the same records
        ([offset(160, 500), "7"], False),
        ([offset(150, 200), "7"], False),
        ([offset(160, 200), "8"], False),
        ([offset(160, 200)], False),
        ([], False),
    ],
)
def test_inputs_are_the_same_where_the_records_are(
    checkpoint: Path, sources: list[str], same: bool
) -> None:
    plan(checkpoint, 3, offset(160, 200), "7")
    plan(checkpoint, 4, *sources)
    one, other = (planned_inputs(f"file://{checkpoint}", batch, query="q1") for batch in (3, 4))
    assert one is not None
    assert other is not None
    assert (one.digest == other.digest) is same


def test_many_partitions_are_compared_and_not_told(checkpoint: Path) -> None:
    plan(checkpoint, 1, json.dumps({"topic": {str(number): 10**9 for number in range(2_000)}}))
    found = planned_inputs(str(checkpoint), 1, query="q1")
    assert found is not None
    assert (found.told, bool(found.digest)) == ("", True)


@pytest.mark.parametrize(
    "location", [None, "hdfs://nn/x", "s3a://bucket/x", "file:relative", "/nowhere", "x\0y"]
)
def test_what_cannot_be_read_is_not_known(location: str | None) -> None:
    assert planned_inputs(location, 0, query="q1") is None


@pytest.mark.parametrize("content", [b"", b"v1", b"v1\n{}", b"\xff\xfe\nx\ny", b"other\n{}\n1"])
def test_a_file_that_is_none_of_sparks_is_not_believed(checkpoint: Path, content: bytes) -> None:
    (checkpoint / "offsets" / "0").write_bytes(content)
    found = planned_inputs(str(checkpoint), 0, query="q1")
    assert found is None or found.told == ""


def test_a_checkpoint_of_another_query_says_nothing(checkpoint: Path) -> None:
    plan(checkpoint, 0, offset(0, 1))
    assert planned_inputs(str(checkpoint), 0, query="q2") is None
    assert planned_inputs(str(checkpoint), 0, query=None) is not None  # the user named it
    for metadata in ("", "[]", "null"):
        (checkpoint / "metadata").write_text(metadata)
        assert planned_inputs(str(checkpoint), 0, query="q1") is None
