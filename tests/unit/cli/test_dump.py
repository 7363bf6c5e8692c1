"""``logbus dump`` on whole, damaged and cut files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spark_logbus.cli.app import app
from spark_logbus.record import stamp
from spark_logbus.record.arrow import encode
from spark_logbus.record.builder import ArrowBatchBuilder

Dump = Callable[..., tuple[int, str]]


def record_batch(base_offset: int, *values: bytes | None) -> bytes:
    builder = ArrowBatchBuilder()
    for value in values:
        builder.add(value=value, key=b"k", timestamp_us=1_357_016_400_000_000, headers=None)
    made = bytearray(encode(builder.build()))
    stamp(made, base_offset=base_offset, leader_epoch=0, append_time_us=0)
    return bytes(made)


FIRST = record_batch(0, b"one", None)
SECOND = record_batch(2, b"three")


@pytest.fixture
def dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Dump:
    """The exit code and the output for a file of these bytes."""

    def run(data: bytes, *options: str) -> tuple[int, str]:
        path = tmp_path / "00000000000000000000.log"
        path.write_bytes(data)
        with pytest.raises(SystemExit) as ended:
            app(["dump", str(path), *options])
        return int(ended.value.code or 0), capsys.readouterr().out

    return run


def test_whole_record_batches(dump: Dump) -> None:
    code, shown = dump(FIRST + SECOND)
    assert code == 0
    assert "0 - 1" in shown
    assert "2 - 2" in shown
    assert "2013-01-01 05:00:00" in shown
    assert shown.count("ok") == 2


def test_records(dump: Dump) -> None:
    code, shown = dump(FIRST + SECOND, "--records")
    assert code == 0
    assert shown.splitlines()[:3] == ["0\tb'k'\tb'one'", "1\tb'k'\tNone", "2\tb'k'\tb'three'"]


def test_a_flipped_bit_does_not_hide_what_follows(dump: Dump) -> None:
    damaged = bytearray(FIRST)
    damaged[-20] ^= 1
    code, shown = dump(bytes(damaged) + SECOND, "--records")
    assert code == 1
    assert "Position 0: Record batch at offset 0: checksum" in shown
    assert "2 - 2" in shown
    assert "1 place in" in shown


@pytest.mark.parametrize("kept", [1, 11, 12, 79, 80, len(SECOND) - 1])
def test_a_torn_tail(dump: Dump, kept: int) -> None:
    code, shown = dump(FIRST + SECOND[:kept])
    assert code == 1
    assert f"Position {len(FIRST):,}: " in shown
    assert "0 - 1" in shown


@pytest.mark.parametrize("tail", [bytes(100_000), b"\xff" * 5_000, b"not a segment at all"])
def test_garbage_behind_the_data(dump: Dump, tail: bytes) -> None:
    code, shown = dump(FIRST + tail)
    assert code == 1
    assert f"{len(tail):,} bytes up to the end are no record batches" in shown


def test_an_empty_file(dump: Dump) -> None:
    code, shown = dump(b"")
    assert code == 0
    assert "is empty" in shown


def test_at_most_so_many(dump: Dump) -> None:
    code, shown = dump(FIRST + SECOND, "--max", "1")
    assert code == 0
    assert "Only the first 1 are shown" in shown
    assert "2 - 2" not in shown
