"""Several runs of a benchmark: how they are kept and pooled, and whether they agree."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import pytest

from bench import compare, runs
from bench.agreement import Agreement, agreements, told_between, told_touching, told_within
from bench.machine import described, processor_of
from bench.raw import (
    RawResults,
    beside_others,
    conditions_of,
    one_by_one,
    pooled,
    read_raw,
    read_runs,
)
from bench.report import stale_pages
from bench.result import Compared, Ratios, Rounds, Spread, spread
from bench.result import ratios as ratios_of_rounds


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
    first, second = one_by_one(read_runs(path)[""])
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
    assert ratios_of_rounds(found["kafka"], found["logbus"], "s") == [4, 3, 3]


def test_a_run_needs_a_file_to_be_added_to() -> None:
    with pytest.raises(SystemExit, match="name it with --csv"):
        RawResults(None, add=True)


OF = Compared("send", "", "logbus", "it")


def ratios(**found: tuple[float, float, float]) -> Ratios:
    return {Compared(row, "", "logbus", "it"): Spread(*values) for row, values in found.items()}


FIRST = ratios(send=(1, 0.9, 1.1), read=(2, 1.8, 2.2), each=(1, 0.9, 1.0), once=(3, 3, 3))
SECOND = ratios(send=(1.3, 1.2, 1.4), read=(2.1, 2.1, 2.3), each=(1.08, 1.03, 1.2), new=(1, 1, 1))


def test_ranges_touch_and_medians_lie_apart() -> None:
    found = agreements({"first": FIRST, "second": SECOND})
    assert [one.of.row for one in found] == ["send", "read", "each"]
    assert [one.touches for one in found] == [False, True, False]
    assert found[0].apart == pytest.approx(0.3)


def test_who_is_ahead_may_be_another() -> None:
    first = ratios(a=(0.9, 0.8, 1.2), b=(1, 1, 2), c=(0.5, 0.5, 0.6))
    second = ratios(a=(1.1, 1.0, 1.2), b=(3, 3, 4), c=(0.9, 0.6, 2.0))
    found = agreements({"A": first, "B": second})
    assert [one.same_ahead for one in found] == [False, True, True]


def test_runs_tell_how_many_of_their_ranges_touch() -> None:
    text = told_within("Of both,", [[FIRST, SECOND], [FIRST]])
    assert " ".join(text.split()) == (
        "Of both, medians of 3 ratios lie 8% apart in the middle, 30% or less in nine of ten, "
        "30% at most (`send`, , logbus beside it); the same one is ahead in 3 of them; ranges "
        "touch in 1 of 3; where they do not, medians lie up to 10% apart in 1 and farther in 1."
    )
    text = " ".join(told_within("In groups,", [[FIRST, SECOND], [FIRST, FIRST]]).split())
    assert "medians of 7 ratios" in text  # one of them of single rounds
    assert "ranges touch in 4 of 6;" in text


def test_each_run_is_laid_beside_all_others_of_its_rows() -> None:
    numbered = [rounds(logbus=[number, number + 0.5]) for number in (1, 2, 3)]
    found = beside_others({"a": numbered, "b": numbered[:2], "alone": numbered[:1]})
    assert [
        {row: (seconds(own, row)["logbus"], seconds(others, row)["logbus"]) for row in own}
        for own, others in found
    ] == [
        {"a": ([1, 1.5], [2, 2.5, 3, 3.5]), "b": ([1, 1.5], [2, 2.5])},
        {"a": ([2, 2.5], [1, 1.5, 3, 3.5]), "b": ([2, 2.5], [1, 1.5])},
        {"a": ([3, 3.5], [1, 1.5, 2, 2.5])},
    ]
    assert all(set(own) == set(others) for own, others in found)


def test_touching_ranges_are_counted_over_groups() -> None:
    text = told_touching("Of both,", [[FIRST, SECOND], [FIRST, FIRST], [FIRST]])
    assert text == "Of both, ranges touch in 4 of 6."
    assert told_touching("Of single rounds,", [[ratios(start=(2, 2, 2))] * 2]) == ""


def test_a_table_tells_who_is_far_from_the_others() -> None:
    text = told_between("Beside it,", {"A": FIRST, "B": SECOND})
    assert text.startswith("Beside it, medians of 3 ratios")
    assert "medians lie up to 10% apart in 1 and farther in 1:" in " ".join(text.split())
    assert text.partition("\n\n")[2].splitlines() == [
        "| ratio | A | B |",
        "|---|---|---|",
        "| `send`, , logbus beside it | 1.00 (0.90-1.10) | 1.30 (1.20-1.40) |",
    ]
    third = told_between("All,", {"A": FIRST, "B": SECOND, "C": ratios(read=(4, 4, 5))})
    assert "| `send`, , logbus beside it | 1.00 (0.90-1.10) | 1.30 (1.20-1.40) |  |" in third
    same = told_between("Both,", {"A": FIRST, "B": FIRST})
    assert same.endswith("ranges touch in 3 of 3.")


def test_single_rounds_have_no_ranges_that_could_touch() -> None:
    single = [ratios(start=(2, 2, 2)), ratios(start=(3, 3, 3))]
    for text in (
        told_within("All", [single]), told_between("All", dict(zip("AB", single, strict=True)))
    ):  # fmt: skip
        assert " ".join(text.split()).endswith(
            "one ratio lie 50% apart (`start`, , logbus beside it); the same one is ahead."
        )
    other = ratios(start=(0.8, 0.8, 0.8))
    assert told_within("All", [[single[0], other]]).endswith("another one is ahead.")


def test_ranges_of_three_runs_touch_where_all_have_a_ratio_in_common() -> None:
    chain = {"A": (1.2, 1, 2), "B": (2.5, 2, 3), "C": (2.8, 2.5, 4)}
    [one] = agreements({name: ratios(send=each) for name, each in chain.items()})
    assert not one.touches  # the first and the third


@pytest.mark.parametrize(("one", "other"), [(2, 2), (3, 2), (3, 3), (2, 7)])
def test_chance_is_the_share_of_all_orders_in_which_ranges_touch(one: int, other: int) -> None:
    places = frozenset(range(one + other))
    found = [
        Agreement(OF, {"one": spread(own), "other": spread([*places.difference(own)])})
        for own in combinations(places, one)
    ]
    assert found[0].chance == pytest.approx(sum(each.touches for each in found) / len(found))


def test_what_chance_would_leave_stands_beside_what_touches() -> None:
    three, two = {OF: spread([1, 2, 3])}, {OF: spread([4, 5])}
    text = told_within("All,", [[three, three], [three, two]])
    assert "ranges touch in 1 of 2, and would in 2 if nothing but chance" in " ".join(text.split())
    assert told_touching("All,", [[three, two]] * 2).endswith(
        "would in 2 if nothing but chance parted them."
    )
    uncounted = {OF: Spread(2, 1, 3)}
    assert told_touching("All,", [[three, three], [three, uncounted]]).endswith("touch in 2 of 2.")
    assert "chance" not in told_between("All,", {"A": three, "B": three, "C": three})


def test_any_two_runs_of_a_group_are_compared() -> None:
    text = told_touching("All,", [[{OF: spread(each)} for each in ([1, 2], [1, 3], [2.5, 4])]])
    assert text.startswith("All, ranges touch in 2 of 3,")


def test_of_what_was_measured_once_nothing_is_told() -> None:
    assert told_within("All", [[FIRST], [SECOND]]) == ""
    assert told_between("All", {"A": FIRST, "B": ratios(new=(1, 1, 1))}) == ""


def test_a_page_tells_settings_of_a_row_once(tmp_path: Path) -> None:
    path = tmp_path / "results" / "clients.csv"
    page = tmp_path / "page.md"
    page.write_text("<!-- generated: bench clients run -->\n<!-- end -->\n")
    took = {"logbus": [{"µs a record": 1.0}]}
    run(path, "send, logbus: linger 5 ms", add=True, send=took)
    run(path, "iterate, logbus: defaults", add=True, iterate=took)
    run(path, "send, logbus: linger 5 ms", add=True, send=took)
    [text] = stale_pages([page], path.parent).values()
    assert (
        "Rows: send\n\nRows: iterate\n\nRows: send\n\nTwo processors.\n"
        "send, logbus: linger 5 ms\niterate, logbus: defaults\n```" in text
    )


def sends(path: Path, said: str, *, faster: float) -> None:
    took = [{"µs a record": 1.0}, {"µs a record": 1.1}]
    theirs = [{"µs a record": faster}, {"µs a record": faster}]
    run(path, said, add=True, send={"librdkafka": theirs, "logbus": took})


def test_a_page_tells_what_all_runs_share_once(tmp_path: Path) -> None:
    path = tmp_path / "results" / "clients.csv"
    page = tmp_path / "page.md"
    page.write_text("<!-- generated: bench clients run -->\n<!-- end -->\n")
    sends(path, "Load 1.", faster=2.0)
    sends(path, "Load 2.", faster=3.0)
    [text] = stale_pages([page], path.parent).values()
    assert "Rows: send\nLoad 1.\n\nRows: all of the above\nLoad 2.\n\nTwo processors.\n```" in text
    assert "where they do not, medians lie up to 10% apart in 0 and farther in 1." in " ".join(
        text.split()
    )


XEON = "2026-11-25; 2 processors (Intel(R) Xeon(R) Processor), 24 GiB, Linux 6.18; load 1."
EPYC = "2026-11-25; 2 processors (AMD EPYC), 24 GiB, Linux 6.18; load 1."


def test_runs_are_told_apart_by_the_processor(tmp_path: Path) -> None:
    path = tmp_path / "raw.csv"
    run(path, XEON, add=True, a=rounds(logbus=[1]), b=rounds(logbus=[2]))
    run(path, EPYC, add=True, b=rounds(logbus=[3]))
    run(path, XEON, add=True, b=rounds(logbus=[4]))
    run(path, "Of an unknown one.", add=True, a=rounds(logbus=[5]))
    found = {name: pooled(runs) for name, runs in read_runs(path).items()}
    assert set(found) == {"Intel Xeon", "AMD EPYC", ""}
    assert seconds(found["Intel Xeon"], "b") == {"logbus": [2, 4]}
    assert seconds(found["Intel Xeon"], "a") == {"logbus": [1]}
    assert seconds(found["AMD EPYC"], "b") == {"logbus": [3]}
    assert seconds(found[""], "a") == {"logbus": [5]}


def test_the_processor_is_found_in_what_the_machine_says_of_itself() -> None:
    assert processor_of(["Rows: a", *described()])
    assert processor_of(["Two processors."]) == ""


def test_a_page_has_processors_beside_each_other(tmp_path: Path) -> None:
    path = tmp_path / "results" / "clients.csv"
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- generated: bench clients rates -->\n<!-- end -->\n"
        "<!-- generated: bench clients run -->\n<!-- end -->\n"
    )
    sends(path, XEON, faster=2.0)
    sends(path, EPYC, faster=3.0)
    [text] = stale_pages([page], path.parent).values()
    assert "| 2.36 (1.82-3.00) | 1.0 |" in text  # the tables are of both
    assert "| ratio | Intel Xeon | AMD EPYC |" in text
    assert "| 1.91 (1.82-2.00) | 2.86 (2.73-3.00) |" in text
    assert "Do runs agree?" not in text
    sends(path, "Of an unknown one.", faster=4.0)
    [text] = stale_pages([page], path.parent).values()
    assert "| ratio | Intel Xeon | AMD EPYC | of an unknown processor |" in text


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
    assert text.startswith(f"Between the tables and {own}, medians of one ratio lie 5% apart")
    assert "ranges touch in 1 of 1, and would in 1 if nothing but chance parted them." in text
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
