"""Several runs of a benchmark: how they are kept, pooled and laid beside one's own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from bench.kit.comparing import Comparing
from bench.kit.raw import RawResults, conditions_of, read_raw, read_runs
from bench.kit.result import Rounds
from bench.programs import compare, runs


def run(path: Path, said: str, *, add: bool, **rows: Rounds) -> None:
    raw = RawResults(path, add=add)
    raw.tell("Two processors.", said)
    for row, rounds in rows.items():
        raw.add_rounds(row, rounds)


def rounds(**seconds: Sequence[float]) -> Rounds:
    return {name: [{"s": one} for one in took] for name, took in seconds.items()}


def seconds(found: Mapping[str, Rounds], row: str) -> dict[str, list[float]]:
    return {name: [one["s"] for one in took] for name, took in found[row].items()}


def test_an_added_run_stands_beside_those_before(tmp_path: Path) -> None:
    path = tmp_path / "raw.csv"
    run(path, "First.", add=True, a=rounds(kafka=[4, 5], logbus=[1, 2]), b=rounds(logbus=[7]))
    run(path, "Second.", add=True, a=rounds(kafka=[6], logbus=[3]), c=rounds(logbus=[8]))
    assert seconds(read_raw(path), "a") == {"kafka": [4, 5, 6], "logbus": [1, 2, 3]}
    first, second = read_runs(path)
    assert (set(first), set(second)) == ({"a", "b", "c"}, {"a"})
    assert seconds(second, "a") == {"kafka": [6], "logbus": [3]}
    told_of_both = ["Rows: a; b", "Two processors.", "First.", "",
                    "Rows: a; c", "Two processors.", "Second."]  # fmt: skip
    assert conditions_of(path) == told_of_both


def test_a_run_that_is_not_added_takes_the_place_of_all_before(tmp_path: Path) -> None:
    path = tmp_path / "raw.csv"
    run(path, "First.", add=False, a=rounds(logbus=[1]), b=rounds(logbus=[7]))
    run(path, "Second.", add=True, a=rounds(logbus=[2]), b=rounds(logbus=[8]))
    run(path, "Third.", add=False, a=rounds(logbus=[3]))
    assert seconds(read_raw(path), "a") == {"logbus": [3]}
    assert seconds(read_raw(path), "b") == {"logbus": [7, 8]}
    assert [line for line in conditions_of(path) if line.startswith("Rows")] == [
        "Rows: b", "Rows: b", "Rows: a"
    ]  # fmt: skip


def test_an_added_run_is_kept_round_by_round(tmp_path: Path) -> None:
    path = tmp_path / "raw.csv"
    run(path, "First.", add=False, a=rounds(logbus=[1]))
    raw = RawResults(path, add=True)
    raw.add_rounds("a", rounds(logbus=[2]))
    raw.add_rounds("a", rounds(logbus=[2, 3]))
    assert seconds(read_raw(path), "a") == {"logbus": [1, 2, 3]}


def test_rounds_that_a_contender_was_not_in_are_empty(tmp_path: Path) -> None:
    path = tmp_path / "raw.csv"
    run(path, "First.", add=False, a=rounds(kafka=[4, 6], logbus=[1, 2]))
    run(path, "Kafka was not at hand.", add=True, a=rounds(logbus=[2]))
    run(path, "Kafka ended early.", add=True, a=rounds(kafka=[9], logbus=[3, 3]))
    found = read_raw(path)["a"]
    assert found["kafka"] == [{"s": 4}, {"s": 6}, {}, {"s": 9}, {}]
    assert Comparing({"s": ""}).ratios(found["logbus"], found["kafka"], "s") == [4, 3, 3]


def test_a_run_needs_a_file_to_be_added_to() -> None:
    with pytest.raises(SystemExit, match="name it with --csv"):
        RawResults(None, add=True)


def sends(path: Path, said: str, *, faster: float) -> None:
    took = [{"µs a record": 1.0}, {"µs a record": 1.1}]
    theirs = [{"µs a record": faster}, {"µs a record": faster}]
    run(path, said, add=True, send={"librdkafka": theirs, "logbus": took})


def compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], results: Path, *own: Path
) -> str:
    files = map(str, own)
    capsys.readouterr()  # what the runs have told
    monkeypatch.setattr(sys, "argv", ["bench compare", *files, "--results", str(results)])
    assert compare.main() == 0
    return " ".join(capsys.readouterr().out.split())


def test_own_results_are_compared_with_those_of_the_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own" / "clients.csv"
    sends(tmp_path / "clients.csv", "Theirs.", faster=2.0)
    sends(own, "Own.", faster=1.9)
    text = compared(monkeypatch, capsys, tmp_path, own)
    assert "│ 1.91 (1.82-2.00) │ 1.81 (1.73-1.90) │" in text
    assert text.endswith(" Conditions of your own alone: Own.")
    assert compared(monkeypatch, capsys, tmp_path, own, own) == f"{text} {text}"
    run(own, "A row that is not there.", add=False, send={"logbus": [{"µs a record": 1.0}]})
    assert "have no ratio in common" in compared(monkeypatch, capsys, tmp_path, own)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("mine.csv", "", "no results are called mine; name it by its program, of peers, spark"),
        ("clients.csv", None, r"clients\.csv is not there; scripts/bench clients --csv .* writes"),
        ("typed.csv", "", r"results/typed\.csv is not there; scripts/bench typed --csv"),
        ("clients.csv", "a,b\n", r"has the columns \['a', 'b'\].*that scripts/bench clients wrote"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    name: str, text: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sends(tmp_path / "results" / "clients.csv", "Theirs.", faster=2.0)
    own = tmp_path / name
    if text is not None:
        own.write_text(text)
    monkeypatch.setattr(
        sys, "argv", ["scripts/bench compare", str(own), "--results", str(tmp_path / "results")]
    )
    with pytest.raises(SystemExit, match=said):
        compare.main()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["0", "clients", "--csv", "x"], "not 0 times"),
        (["2", "clients", "--rows", "send"], "name it with --csv"),
    ],
)
def test_runs_that_cannot_be_kept_are_refused(
    given: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["scripts/bench runs", *given])
    with pytest.raises(SystemExit, match=said):
        runs.main()
