"""Program ``scripts/bench report``: raw results become tables and charts of the documents."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.kit import ROOT
from bench.kit.comparing import Compared
from bench.kit.raw import COLUMNS, RawError, RawResults, conditions_of, read_raw
from bench.kit.result import Metrics, Rounds
from bench.programs.clients.rows import COMPARED as CLIENTS
from bench.programs.report import program as report
from bench.programs.report.program import (
    PARTS,
    UnknownPartError,
    medians_of_runs,
    pages,
    stale_pages,
)
from bench.programs.report.questions import GRIDS
from bench.programs.stream.rows import COMPARED as STREAM
from bench.programs.typed.rows import COMPARED as TYPED

HEAD = ",".join(COLUMNS)
TOOK: Mapping[str, Mapping[str, float]] = {  # seconds of two shapes
    "Kafka": {"read-200": 8.0, "read-zstd": 3.0},
    "Kafka, tuned": {"read-200": 4.0, "read-zstd": 1.0},
    "logbus": {"read-200": 2.0, "read-zstd": 2.0},
}


def write(path: Path, rows: Mapping[str, Rounds], *, add: bool = False) -> None:
    raw = RawResults(path, add=add)
    raw.tell("Two processors.", "Kafka 4.3.1.")
    for row, rounds in rows.items():
        raw.add_rounds(row, rounds)


def spark_results() -> dict[str, Rounds]:
    return {
        f"{row}, all columns": {
            name: [{"seconds": took[row] * way, "CPU s": took[row]} for way in (1.0, 1.25)]
            for name, took in TOOK.items()
        }
        for row in ("read-200", "read-zstd")
    }


def page(directory: Path, *parts: str) -> Path:
    path = directory / "page.md"
    marked = (f"<!-- generated: bench {part} -->\nBy hand.\n<!-- end -->\n" for part in parts)
    path.write_text("\n".join(marked))
    return path


def test_the_documents_agree_with_the_raw_results() -> None:
    assert PARTS.search((ROOT / "docs" / "benchmarks.md").read_text())
    stale = stale_pages(pages(), report.RESULTS)
    assert [str(page) for page in stale] == [], "run scripts/bench report"


def test_raw_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "spark.csv"
    write(path, spark_results())
    assert read_raw(path) == spark_results()
    rows = "Rows: read-200, all columns; read-zstd, all columns"
    assert conditions_of(path) == [rows, "Two processors.", "Kafka 4.3.1."]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("row,size\n", r"has the columns \['row', 'size'\], not row, run, contender, round"),
        (f"{HEAD}\na,1,b,1,ms,fast\n", "line 2: .*'fast'"),
        (f"{HEAD}\na,1,b,2,ms,1\n", "round 2 of b comes after 0; they are in order"),
        (f"{HEAD}\na,1,b,0,ms,1\n", "round 0 of b comes after 0; they are in order"),
        (f"{HEAD}\na,1,b,1,ms,1\na,3,b,1,ms,1\n", "line 3: run 3 of a comes after 1;"),
    ],
)
def test_what_is_no_raw_result_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "raw.csv"
    path.write_text(text)
    with pytest.raises(RawError, match=said):
        read_raw(path)


def test_parts_without_results_stay_as_they_are(tmp_path: Path) -> None:
    kept = page(tmp_path, "spark reads", "peers disk", "spark writes")
    assert stale_pages([kept], tmp_path) == {}
    write(tmp_path / "spark.csv", spark_results())
    text = stale_pages([kept], tmp_path)[kept]
    assert text.count("By hand.") == 2
    assert "| `read-200` | 4.0 (4.00-4.00) | 2.0 (2.00-2.00) |  |  |" in text
    kept.write_text(text)
    assert kept not in stale_pages([kept], tmp_path)


def test_the_page_of_a_program_has_all_comparisons_and_the_median_of_each_run(
    tmp_path: Path,
) -> None:
    path = tmp_path / "spark.csv"
    write(path, spark_results())
    slower = {"Kafka": [{"seconds": 6.0}], "logbus": [{"seconds": 2.0}]}
    write(path, {"read-200, all columns": slower}, add=True)
    compared = Compared("read-200", "all columns", "logbus", "Kafka")
    assert medians_of_runs("spark", path)[compared] == [4.0, 3.0]
    [text] = stale_pages([], tmp_path).values()
    ratio = "| logbus | 2.00 | Kafka | 8.00 | 4.0 (3.00-4.00) | 4.00, 3.00 | 4 |"
    assert f"| `read-200` | all columns {ratio}" in text
    assert "| `read-200, all columns` | logbus | seconds: 2.00 (2.00-2.50); CPU s: 2.00" in text
    path.with_suffix(".md").write_text(text)
    assert stale_pages([], tmp_path) == {}


def test_rows_of_earlier_runs_stay_until_they_are_measured_anew(tmp_path: Path) -> None:
    path = tmp_path / "raw.csv"

    def run(told: str, **seconds: float) -> None:
        raw = RawResults(path)
        raw.tell(told)
        for row, value in seconds.items():
            raw.add_rounds(row, {"logbus": [{"s": value}]})

    run("First.", a=1.0, b=2.0)
    run("Ended before its first row.")
    assert conditions_of(path) == ["Rows: a; b", "First."]
    run("Second.", b=3.0, c=4.0)
    found = {row: rounds["logbus"][0]["s"] for row, rounds in read_raw(path).items()}
    assert found == {"a": 1.0, "b": 3.0, "c": 4.0}
    assert conditions_of(path) == ["Rows: a", "First.", "", "Rows: b; c", "Second."]
    run("Third.", a=5.0)
    assert conditions_of(path) == ["Rows: b; c", "Second.", "", "Rows: a", "Third."]


def test_a_file_of_something_else_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "raw.csv"
    path.write_text("case,seconds\n")
    with pytest.raises(SystemExit, match="Name another file"):
        RawResults(path)
    assert path.read_text() == "case,seconds\n"


@pytest.mark.parametrize(
    ("part", "said"), [("spark rides", "no part rides; use reads"), ("sprak reads", "use peers")]
)
def test_parts_that_nothing_fills_are_refused(tmp_path: Path, part: str, said: str) -> None:
    write(tmp_path / "spark.csv", spark_results())
    with pytest.raises(UnknownPartError, match=said):
        stale_pages([page(tmp_path, part)], tmp_path)


def test_the_report_checks_writes_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, charts = tmp_path / "results", tmp_path / "charts"
    kept = page(tmp_path, "spark reads")
    write(results / "spark.csv", spark_results())
    command = ["scripts/bench report", "--results", str(results), "--docs", str(kept),
               "--charts", str(charts)]  # fmt: skip

    def run(*more: str) -> int:
        monkeypatch.setattr(sys, "argv", [*command, *more])
        return report.main()

    assert run("--check") == 1
    assert "By hand." in kept.read_text()
    assert run() == 0
    assert run("--check") == 0
    assert (results / "spark.md").exists()


def test_clients_have_rates_beside_each_peer() -> None:
    def took(us: float) -> list[Metrics]:
        return [{"µs a record": us, "CPU µs a record": us}]

    sizes = {f"record batch of 1{part}": 270.0 for part in ("", ", without values")}
    rows: dict[str, Rounds] = {
        "send": {"librdkafka": took(2.0), "logbus": took(1.0)},
        "disk": {"librdkafka": [sizes], "logbus": [dict.fromkeys(sizes, 540.0)]},
    }
    found = CLIENTS.of(rows)
    table = GRIDS["clients"]["rates"].markdown({"clients": found})
    assert table.splitlines()[2:] == [
        "| `send`, librdkafka | 500,000 | 1,000,000 | 2.0 (2.00-2.00) |"
    ]
    of_disk = Compared("disk", "record batch of 1", "logbus", "librdkafka")
    assert found[of_disk].ratio.median == 0.5


def test_streams_have_a_table_for_each_question() -> None:
    def took(ms: float) -> list[Metrics]:
        return [{"triggerExecution": ms, "addBatch": ms / 2, "latestOffset": 1, "walCommit": 2}]

    rows: dict[str, Rounds] = {
        "noop": {"Kafka": took(180), "logbus": took(150)},
        "idle": {"nothing": took(1), "logbus": took(2)},
        "partitions": {"10 partitions": took(100), "1,000 partitions": took(300)},
        "read": {"Kafka": [{"load to the end": 5.0}], "logbus": [{"load to the end": 2.5}]},
        "foreach-fast-keyed": {"Kafka": took(200), "logbus": took(100)},
    }
    known = {"stream": STREAM.of(rows)}
    found = {name: grid.markdown(known) for name, grid in GRIDS["stream"].items()}
    assert found["micro-batches"].splitlines() == [
        "| row | Kafka | logbus | micro-batch | addBatch | age, p50 | age, p99 |",
        "|---|---|---|---|---|---|---|",
        "| `noop` | 180 ms | 150 ms | 1.20 (1.20-1.20) | 1.20 (1.20-1.20) |  |  |",
    ]
    assert "| `idle` | 1.00 ms | 2.00 ms | **0.50** (0.50-0.50) |" in found["nothing"]
    assert "| `read` | 5.00 | 2.50 | 2.0 (2.00-2.00) |" in found["start"]
    of_shape = Compared("foreach-fast-keyed", "micro-batch", "logbus", "Kafka")
    assert known["stream"][of_shape].ratio.median == 2.0
    of_partitions = Compared("partitions", "micro-batch", "10 partitions", "1,000 partitions")
    assert known["stream"][of_partitions].ratio.median == 3.0
    assert STREAM.goals[Compared("noop", "micro-batch", "logbus", "Kafka")] == 1.2


def test_typed_reads_are_beside_what_spark_decodes_and_what_is_ready_made() -> None:
    def took(seconds: float) -> list[Metrics]:
        return [{"seconds": seconds}]

    json, few = "beside Kafka's source with JSON, 3 of 19 columns", "3 of 19 columns"
    rows: dict[str, Rounds] = {
        f"b, {few}": {"ready-made Arrow": took(1.0), "logbus": took(2.0)},
        f"k, {json}": {"Kafka, from_json": took(6.0), "logbus, from_json": took(4.0),
                       "logbus, columns": took(0.5)},
        "f, bytes on disk of 1,000 flights": {"Parquet, ZSTD": [{"bytes": 1_000.0}],
                                              "columns, ZSTD": [{"bytes": 2_000.0}]},
    }  # fmt: skip
    found = TYPED.of(rows)
    table = GRIDS["typed"]["reads"].markdown({"typed": found})
    assert table.splitlines()[2:] == [
        "| `b`: 3 of 19 columns, ready-made Arrow | **0.50** (0.50-0.50) |  |",
        f"| `k`: {json}, Kafka, from_json | 12 (12.0-12.0) |  |",
    ]
    of_disk = Compared("f", "bytes on disk of 1,000 flights", "columns, ZSTD", "Parquet, ZSTD")
    assert found[of_disk].ratio.median == 0.5
    assert TYPED.goals[Compared("k", json, "logbus, columns", "Kafka, from_json")] == 12
