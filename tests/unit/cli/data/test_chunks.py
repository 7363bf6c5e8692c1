from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from spark_logbus.cli.data.chunks import Chunk, Input
from spark_logbus.cli.data.record_input import InputRecord, KeySplitter
from spark_logbus.errors import InvalidRequestError

NOTHING = InputRecord(value=None)


def read(
    lines: bytes,
    monkeypatch: pytest.MonkeyPatch,
    *,
    key_separator: str | None = None,
    json_lines: bool = False,
    for_all: InputRecord = NOTHING,
    tombstones: bool = False,
) -> Input:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    return Input(
        [],
        whole_files=False,
        delimiter=None,
        keys=None if key_separator is None else KeySplitter(key_separator),
        json_lines=json_lines,
        for_all=for_all,
        tombstones=tombstones,
    )


def records(chunk: Chunk) -> list[InputRecord]:
    return [chunk.record(number) for number in range(len(chunk))]


def test_what_is_given_for_all_stands_behind_the_records_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = InputRecord(value=None, key=b"k", headers=(("a", b"1"),), partition=2, timestamp_us=7)
    lines = (
        b'{"value": "", "key": "own", "headers": {"b": "2"}, "partition": 1, "timestamp_us": 5}\n'
        b'{"value": "v"}\n'
    )
    [chunk] = read(lines, monkeypatch, json_lines=True, for_all=given, tombstones=True)
    assert records(chunk) == [
        InputRecord(
            value=None,
            key=b"own",
            headers=(("b", b"2"), ("a", b"1")),
            partition=1,
            timestamp_us=5,
        ),
        InputRecord(value=b"v", key=b"k", headers=(("a", b"1"),), partition=2, timestamp_us=7),
    ]


def test_a_partition_of_all_is_no_column(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = b'{"value": "a", "partition": 1}\n{"value": "b", "partition": 1}\n'
    [chunk] = read(lines, monkeypatch, json_lines=True)
    assert (chunk.partition, chunk.partitions) == (1, None)
    assert (chunk.keys, chunk.headers, chunk.timestamps_us) == (None, None, None)


@pytest.mark.parametrize(
    ("keys", "partitions", "runs"),
    [
        (None, None, ["abcd"]),
        ([b"k", b"k", None, None], None, ["ab", "cd"]),
        ([None, b"k", None, b"k"], None, ["a", "b", "c", "d"]),
        (None, [1, 2, None, 2], ["ab", "c", "d"]),
        ([None, b"k", None, None], [0, None, 1, None], ["abc", "d"]),
        ([b"k", b"l", b"k", b"l"], None, ["abcd"]),
    ],
)
def test_runs_of_records_that_keep_their_order(
    keys: Sequence[bytes | None] | None, partitions: Sequence[int | None] | None, runs: list[str]
) -> None:
    chunk = Chunk(
        values=[b"a", b"b", b"c", b"d"],
        keys=keys,
        partitions=partitions,
        source="f",
        first_line=1_000,
    )
    found = list(chunk.runs())
    assert [b"".join(value or b"" for value in run.values).decode() for run in found] == runs
    assert [record for run in found for record in records(run)] == records(chunk)
    assert found[-1].where(len(found[-1]) - 1) == "Line 1,003 of f"


def test_lines_before_a_wrong_one_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = iter(read(b'{"value": "a"}\n{"value": "\\ud800"}\n{}\n', monkeypatch, json_lines=True))
    assert next(chunks).values == [b"a"]
    with pytest.raises(InvalidRequestError, match=r"^Line 2 of standard input .* no text in UTF-8"):
        next(chunks)


def test_a_chunk_ends_where_a_pipe_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as source, open(writing, "wb", buffering=0) as sink:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(source))
        chunks = iter(
            Input(
                [],
                whole_files=False,
                delimiter=None,
                keys=None,
                json_lines=False,
                for_all=NOTHING,
                tombstones=False,
            )
        )
        sink.write(b"a\nb\nc")
        assert next(chunks).values == [b"a", b"b"]
        sink.write(b"c\n")
        chunk = next(chunks)
        assert (chunk.values, chunk.where(0)) == ([b"cc"], "Line 3 of standard input")
        sink.write(b"d")
        sink.close()
        assert next(chunks).values == [b"d"]
        assert next(chunks, None) is None


def test_many_lines_are_many_chunks(tmp_path: Path) -> None:
    lines = [b"%d" % number for number in range(150_000)]
    file = tmp_path / "lines"
    file.write_bytes(b"\r\n".join(lines))
    chunks = list(
        Input(
            [file],
            whole_files=False,
            delimiter=None,
            keys=None,
            json_lines=False,
            for_all=NOTHING,
            tombstones=False,
        )
    )
    assert len(chunks) > 1
    assert [value for chunk in chunks for value in chunk.values] == lines
    assert chunks[-1].where(len(chunks[-1]) - 1) == f"Line 150,000 of {file}"
