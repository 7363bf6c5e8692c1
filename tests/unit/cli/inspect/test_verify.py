"""``logbus verify``: what is printed, and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_logbus.cli.app import app
from tests.builders.record_batches import record_batch
from tests.fakes.log_directory import Broker

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    broker = Broker(tmp_path / "data")
    broker.append(record_batch(2), record_batch(3))
    broker.directory.close()
    return broker.path


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            app(["verify", *map(str, words)])
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    return run


def break_it(data: Path) -> Path:
    path = data / "flights-0" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-1])
    return path


def test_a_sound_directory(verify: Run, data: Path) -> None:
    (data / "broker.id").write_text("1\n")  # known, and no finding
    code, out, err = verify(data)
    assert (code, err) == (0, "")
    assert "not in use, stopped in order): 1 log, 1 segment, 2 record batches, 5 records" in out
    assert out.splitlines()[-1] == "Sound."


def test_damage(verify: Run, data: Path) -> None:
    break_it(data)
    code, out, _ = verify(data)
    assert code == 1
    assert "damage  flights-0/00000000000000000000.log" in out
    assert out.splitlines()[-1] == "Something is wrong in 1 place."


def test_notes_alone_are_no_reason_to_worry(verify: Run, data: Path) -> None:
    (data / "notes.txt").touch()
    code, out, _ = verify(data)
    assert code == 0
    assert "note  notes.txt" in out


def test_lines_of_json(verify: Run, data: Path) -> None:
    path = break_it(data)
    code, out, _ = verify(data, "--json")
    assert code == 1
    found, summary = map(json.loads, out.splitlines())
    assert (found["kind"], found["path"]) == ("damage", str(path))
    assert summary["kind"] == "summary"
    assert (summary["sound"], summary["clean"], summary["records"]) == (False, True, 2)


@pytest.mark.parametrize("wrong", ["missing", "empty", "data/checkpoint"])
def test_what_is_no_data_directory(verify: Run, data: Path, wrong: str) -> None:
    (data.parent / "empty").mkdir()
    code, out, err = verify(data.parent / wrong)
    assert (code, out) == (2, "")
    assert "Error" in err


@pytest.mark.parametrize("verb", ["verify", "accept-clock"])
def test_the_directory_above_names_the_one_with_the_logs(
    verb: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broker-1").mkdir()
    data.rename(tmp_path / "broker-1" / "data")
    for above in (tmp_path, tmp_path / "broker-1"):
        with pytest.raises(SystemExit) as ended:
            app([verb, str(above)])
        assert ended.value.code != 0
        said = "".join(capsys.readouterr().err.replace("│", "").split())
        assert f"{above}holdsnologs:" in said
        assert f"suchas{tmp_path / 'broker-1' / 'data'}." in said
