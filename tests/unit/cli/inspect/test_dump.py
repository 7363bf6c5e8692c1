"""``logbus dump`` on whole, damaged and cut files."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_logbus.cli.app import app
from spark_logbus.log import LogConfig
from spark_logbus.model import Compression
from spark_logbus.record import stamp
from spark_logbus.record.rows.arrow import encode
from spark_logbus.record.rows.builder import ArrowBatchBuilder
from tests.builders import record_batches
from tests.builders.staged import WRITE, attempt, stage
from tests.builders.typed import flights, typed_record_batch
from tests.fakes.log_directory import Broker

Run = Callable[..., tuple[int, str]]
Dump = Callable[..., tuple[int, str]]


def record_batch(
    base_offset: int, *values: bytes | None, compression: Compression = Compression.NONE
) -> bytes:
    builder = ArrowBatchBuilder()
    for value in values:
        builder.add(value=value, key=b"k", timestamp_us=1_357_016_400_000_000, headers=None)
    made = bytearray(encode(builder.build(), compression=compression))
    stamp(made, base_offset=base_offset, leader_epoch=0, append_time_us=0)
    return bytes(made)


FIRST = record_batch(0, b"one", None)
SECOND = record_batch(2, b"three")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """The exit code and the output of ``logbus dump <words>``."""

    def run(*words: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            app(["dump", *map(str, words)])
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out + shown.err

    return run


@pytest.fixture
def dump(tmp_path: Path, run: Run) -> Dump:
    """``logbus dump <what>`` on a segment of these bytes."""

    def dump(what: str, data: bytes, *options: str) -> tuple[int, str]:
        path = tmp_path / "00000000000000000000.log"
        path.write_bytes(data)
        return run(what, path, *options)

    return dump


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with two segments of a log, stopped in order."""
    config = LogConfig(segment_bytes=1024, index_interval_bytes=128)
    broker = Broker(tmp_path / "data", config=config)
    broker.append(*(record_batches.record_batch(2, payload=bytes(400)) for _ in range(3)))
    broker.directory.close()
    return broker.path


# -- record batches -------------------------------------------------------------------------


def test_whole_record_batches(dump: Dump) -> None:
    code, shown = dump("batches", FIRST + SECOND)
    assert code == 0
    assert "0-1" in shown
    assert "2-2" in shown
    assert "2013-01-01T05:00:00Z" in shown
    assert "none         key " in shown
    assert shown.count("ok") == 2


def test_the_old_form_without_a_word_for_what(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(FIRST)
    assert run(path) == run("batches", path)


def test_record_batches_as_json(dump: Dump) -> None:
    code, shown = dump(
        "batches", record_batch(0, *[b"x"] * 99, compression=Compression.ZSTD), "--json"
    )
    assert code == 0
    found = json.loads(shown)
    assert (found["kind"], found["position"], found["last_offset"]) == ("record batch", 0, 98)
    assert (found["compression"], found["flags"], found["producer_id"]) == ("zstd", ["key"], -1)


def test_a_flipped_bit_does_not_hide_what_follows(dump: Dump) -> None:
    damaged = bytearray(FIRST)
    damaged[-20] ^= 1
    code, shown = dump("batches", bytes(damaged) + SECOND)
    assert code == 1
    assert f"Position 0, {len(FIRST)} bytes: Record batch at offset 0: checksum" in shown
    assert "2-2" in shown
    assert "1 place in" in shown


def test_damage_as_json(dump: Dump) -> None:
    damaged = bytearray(FIRST)
    damaged[-20] ^= 1
    code, shown = dump("batches", bytes(damaged) + SECOND, "--json")
    assert code == 1
    first, second = map(json.loads, shown.splitlines())
    assert (first["kind"], first["position"], first["bytes"]) == ("damage", 0, len(FIRST))
    assert (second["kind"], second["base_offset"]) == ("record batch", 2)


@pytest.mark.parametrize("kept", [1, 11, 12, 79, 80, len(SECOND) - 1])
@pytest.mark.parametrize("what", ["batches", "records"])
def test_a_torn_tail(dump: Dump, what: str, kept: int) -> None:
    code, shown = dump(what, FIRST + SECOND[:kept])
    assert code == 1
    assert f"Position {len(FIRST):,}, {kept} byte" in shown


@pytest.mark.parametrize("tail", [bytes(100_000), b"\xff" * 5_000, b"not a segment at all"])
@pytest.mark.parametrize("what", ["batches", "records"])
def test_garbage_behind_the_data(dump: Dump, what: str, tail: bytes) -> None:
    code, shown = dump(what, FIRST + tail)
    assert code == 1
    assert f"{len(tail):,} bytes: " in shown


@pytest.mark.parametrize("position", range(0, len(FIRST), 3))
def test_no_flipped_bit_ends_it_unawares(dump: Dump, position: int) -> None:
    damaged = bytearray(FIRST)
    damaged[position] ^= 0x80
    for what in ("batches", "records"):
        code, shown = dump(what, bytes(damaged) + SECOND, "--json")
        assert code in (0, 1)
        for line in shown.splitlines():
            json.loads(line)


def test_an_empty_file(dump: Dump) -> None:
    code, shown = dump("batches", b"")
    assert code == 0
    assert "is empty" in shown


def test_at_most_so_many(dump: Dump) -> None:
    code, shown = dump("batches", FIRST + SECOND, "--max", "1")
    assert code == 0
    assert "Only the first 1 are shown" in shown
    assert "2-2" not in shown


# -- records --------------------------------------------------------------------------------


def test_records(dump: Dump) -> None:
    code, shown = dump("records", FIRST + SECOND)
    assert code == 0
    assert shown.splitlines() == [
        "0\t2013-01-01 05:00:00\tb'k'\tb'one'",
        "1\t2013-01-01 05:00:00\tb'k'\tNone",
        "2\t2013-01-01 05:00:00\tb'k'\tb'three'",
    ]


def test_records_from_an_offset_in_a_record_batch(dump: Dump) -> None:
    code, shown = dump("records", FIRST + SECOND, "--from-offset", "1", "--max", "1")
    assert code == 0
    lines = shown.splitlines()
    assert lines[0].startswith("1\t")
    assert lines[1] == "Only the first 1 are shown; --max shows more."


def test_records_as_json(dump: Dump) -> None:
    code, shown = dump("records", record_batch(0, b"text", b"\xff", None), "--json")
    assert code == 0
    found = [json.loads(line) for line in shown.splitlines()]
    assert [record["value"] for record in found] == ["text", {"base64": "/w=="}, None]
    assert found[0]["timestamp_us"] == 1_357_016_400_000_000


def test_records_whose_payload_is_none(dump: Dump) -> None:
    """A right checksum over bytes that are no Arrow message."""
    foreign = record_batches.record_batch(2)
    code, shown = dump("records", bytes(foreign) + SECOND)
    assert code == 1
    assert f"Position 0, {len(foreign)} bytes: " in shown
    assert "b'three'" in shown


# -- indexes --------------------------------------------------------------------------------


def test_an_index_that_agrees(run: Run, data: Path) -> None:
    code, shown = run("index", data / "flights-0" / f"{0:020d}.index")
    assert code == 0
    assert "base_offset: 0" in shown
    assert "end_offset: 4" in shown
    assert shown.splitlines()[-1] == "It agrees with its segment."


def test_an_index_of_another_segment(run: Run, data: Path) -> None:
    path = data / "flights-0" / f"{0:020d}.index"
    path.write_bytes((data / "flights-0" / f"{4:020d}.index").read_bytes())
    code, shown = run("index", path)
    assert code == 1
    assert "It is wrong: it is stale" in shown


def test_a_damaged_index_as_json(run: Run, data: Path) -> None:
    path = data / "flights-0" / f"{0:020d}.index"
    path.write_bytes(path.read_bytes()[:-1])
    code, shown = run("index", path, "--json")
    assert code == 1
    found = json.loads(shown)
    assert found["end_offset"] == 4
    assert found["problem"] == "its entries are damaged or cut off"


# -- segments -------------------------------------------------------------------------------


def test_segments(run: Run, data: Path) -> None:
    code, shown = run("segments", data)
    assert code == 0
    assert "(not in use)" in shown
    assert "logbus-clean-shutdown 1" in shown
    assert "logbus-partition 1" in shown
    assert re.search(r"00000000000000000000.log +0-3 +2 +4 ", shown)
    assert re.search(r"00000000000000000004.log +4-5 +1 +2 ", shown)


def test_a_path_alone_is_shown_as_what_it_is(run: Run, data: Path) -> None:
    log = data / "flights-0"
    assert run(data) == run("segments", data)
    assert run(log) == run("segments", log)
    index = log / f"{0:020d}.index"
    assert run(index) == run("index", index)
    segment = index.with_suffix(".log")
    assert run(segment) == run("batches", segment)
    code, shown = run(data / "nothing")
    assert code == 2
    assert "There is no file or directory" in shown


def test_segments_of_a_live_directory(run: Run, tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")
    broker.append(record_batches.record_batch())
    code, shown = run("segments", broker.path)
    assert code == 0
    assert "(in use by a broker)" in shown
    assert "in memory" in shown
    broker.directory.close()


@pytest.mark.parametrize("in_use", [True, False])
def test_the_outdated_index_of_an_active_segment_is_nothing_wrong(
    run: Run, tmp_path: Path, *, in_use: bool
) -> None:
    """The index is of the last orderly stop; the broker has the newer one in memory, or makes it
    anew."""
    broker = Broker(tmp_path / "data")
    broker.append(record_batches.record_batch())
    broker.restart()
    broker.append(record_batches.record_batch())
    if not in_use:
        shutil.copytree(broker.path, tmp_path / "killed")
    data = broker.path if in_use else tmp_path / "killed"
    code, shown = run("segments", data)
    assert code == 0
    assert "in memory" in shown
    assert "stale" not in shown
    index = data / "flights-0" / f"{0:020d}.index"
    code, shown = run("index", index)
    assert code == 0
    assert "its segment has grown since" in shown
    code, shown = run("index", index, "--json")
    told = json.loads(shown.splitlines()[-1])
    assert (code, told["outdated"], told["problem"]) == (0, True, None)
    broker.directory.close()


def test_segments_as_json_with_damage_and_unknown_files(run: Run, data: Path) -> None:
    log = data / "flights-0"
    (log / "something").write_bytes(b"\x00\xff")
    (log / f"{4:020d}.producers").write_bytes(b"torn")
    first = log / f"{0:020d}.log"
    first.write_bytes(first.read_bytes()[:500] + bytes(10))
    code, shown = run("segments", log, "--json")
    assert code == 0
    found = [json.loads(line) for line in shown.splitlines()]
    files = {Path(line["path"]).name: line for line in found if line["kind"] == "file"}
    assert files["something"]["problem"] is None
    assert files[f"{4:020d}.producers"]["problem"] == "its checksum is wrong"
    torn, whole = (line for line in found if line["kind"] == "segment")
    assert (torn["end_offset"], torn["index"]) == (2, "not compared")
    assert "no record batch at position 480" in torn["problem"]
    assert (whole["records"], whole["problem"]) == (2, None)


@pytest.mark.parametrize("what", ["segments", "batches", "records", "index"])
def test_a_file_that_is_not_there(tmp_path: Path, what: str) -> None:
    from spark_logbus.errors import InvalidRequestError

    with pytest.raises(InvalidRequestError, match=r"Cannot read|There is no file"):
        app(["dump", what, str(tmp_path / "missing.log")])


def test_staged_records(run: Run, tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")
    stage(broker.log(), attempt(1), 3)
    stage(broker.log(), attempt(2), 1, 1)
    broker.directory.close()
    staged = broker.log_path() / "0000000000000000.staged"
    with staged.open("ab") as file:
        file.write(b"torn")
    code, shown = run("segments", broker.path)
    assert code == 0
    assert "then 4 bytes, torn or of earlier writes" in shown
    assert f"write {WRITE}: 5 records of 2 attempts of tasks, the last at" in shown


# -- record batches of columns --------------------------------------------------------------


def columns_at(base_offset: int) -> bytes:
    made = bytearray(typed_record_batch([*flights(0, 2), None], keys=[b"k"] * 3, schema_id=41))
    stamp(made, base_offset=base_offset, leader_epoch=0, append_time_us=0)
    return bytes(made)


def test_record_batches_of_columns(dump: Dump) -> None:
    code, shown = dump("batches", FIRST + columns_at(2), "--json")
    assert code == 0
    plain, typed = map(json.loads, shown.splitlines())
    assert (plain["layout"], plain["schema_id"], plain["columns"]) == (0, 0, None)
    assert (typed["layout"], typed["schema_id"], typed["columns"]) == (1, 41, 7)
    assert typed["flags"] == ["key", "tombstones"]
    code, shown = dump("batches", FIRST + columns_at(2))
    assert code == 0
    assert re.search(r"key,tombstones\s+1\s+41\s+7\s+-\s+ok", shown)


def test_records_in_columns_are_told_not_taken_for_damage(dump: Dump) -> None:
    data = FIRST + columns_at(2) + record_batch(5, b"six")
    code, shown = dump("records", data)
    assert code == 0
    assert "2-4\t3 records as columns of schema 41; not shown without that schema" in shown
    assert "b'six'" in shown
    code, shown = dump("records", data, "--json", "-o", "4")
    assert code == 0
    told, after = map(json.loads, shown.splitlines())
    assert told == {
        "kind": "columns", "offset": 2, "last_offset": 4, "records": 3, "schema_id": 41,
    }  # fmt: skip
    assert after["offset"] == 5
