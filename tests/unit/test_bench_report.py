"""``scripts/bench report``: raw results become tables and charts of the documents."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench import report
from bench.charts import Bar, Chart, Panel, draw_all
from bench.clients.report import tables as tables_of_clients
from bench.findings import finding, finding_over
from bench.harness import ROOT
from bench.raw import COLUMNS, RawError, RawResults, conditions_of, read_raw
from bench.report import PARTS, UnknownPartError, pages, stale_pages
from bench.result import Metrics, Result, Spread
from bench.spark.report import charts_of, tables
from bench.stream.report import charts_of as charts_of_streams
from bench.stream.report import tables as tables_of_streams
from bench.typed.report import charts_of as charts_of_typed
from bench.typed.report import tables as tables_of_typed

HEAD = ",".join(COLUMNS)
SPARK: Mapping[str, Mapping[str, float]] = {  # seconds of two shapes
    "Kafka": {"read-200": 8.0, "read-zstd": 3.0},
    "Kafka, tuned": {"read-200": 4.0, "read-zstd": 1.0},
    "logbus": {"read-200": 2.0, "read-zstd": 2.0},
}


def write(path: Path, *results: Result) -> None:
    raw = RawResults(path)
    raw.tell("Two processors.", "Kafka 4.3.1.")
    for result in results:
        raw.add(result)


def spark_results() -> list[Result]:
    results = []
    for row in ("read-200", "read-zstd"):
        rounds = {
            name: [{"seconds": took[row] * way, "CPU s": took[row], "records": 1_000.0}
                   for way in (1.0, 1.25)]
            for name, took in SPARK.items()
        }  # fmt: skip
        results.append(Result(f"{row}, all columns", "", "seconds", rounds, ()))
    return results


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
    write(path, *spark_results())
    assert read_raw(path) == {result.row: result.rounds for result in spark_results()}
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
    write(tmp_path / "spark.csv", *spark_results())
    [(_, text)] = stale_pages([kept], tmp_path).items()
    assert text.count("By hand.") == 2
    assert "| `read-200` | all columns | logbus | 450 | Kafka |" in text
    kept.write_text(text)
    assert stale_pages([kept], tmp_path) == {}


def test_the_conditions_of_a_run_are_a_part(tmp_path: Path) -> None:
    write(tmp_path / "spark.csv", *spark_results())
    [text] = stale_pages([page(tmp_path, "spark run")], tmp_path).values()
    assert "all columns\nTwo processors.\nKafka 4.3.1.\n```" in text


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
    write(tmp_path / "spark.csv", *spark_results())
    with pytest.raises(UnknownPartError, match=said):
        stale_pages([page(tmp_path, part)], tmp_path)


def test_the_report_checks_writes_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, charts = tmp_path / "results", tmp_path / "charts"
    kept = page(tmp_path, "spark reads")
    write(results / "spark.csv", *spark_results())
    command = ["scripts/bench report", "--results", str(results), "--docs", str(kept),
               "--charts", str(charts)]  # fmt: skip

    def run(*more: str) -> int:
        monkeypatch.setattr(sys, "argv", [*command, *more])
        return report.main()

    assert run("--check") == 1
    assert "By hand." in kept.read_text()
    assert run() == 0
    assert run("--check") == 0
    assert [path.name for path in charts.iterdir()] == ["spark-reads-all-columns.svg"]
    assert "](charts/spark-reads-all-columns.svg)" in kept.read_text()


def test_charts_of_spark_say_where_logbus_is_ahead_and_behind(tmp_path: Path) -> None:
    [chart] = charts_of({result.row: result.rounds for result in spark_results()})
    assert [panel.title for panel in chart.panels] == [
        "logbus reads all columns 1.5 (read-zstd) to 4.0 times (read-200) as fast as Kafka",
        "logbus reads all columns 2.0 times (read-200) as fast as Kafka (tuned); 0.50 times "
        "(read-zstd) as fast as Kafka (tuned)",
    ]
    assert [bar.label for bar in chart.panels[1].bars] == ["read-200", "read-zstd"]
    write(tmp_path / "spark.csv", *spark_results())
    assert tables(tmp_path / "spark.csv")["writes"] == ""


def spread(lowest: float, highest: float) -> Spread:
    return Spread((lowest + highest) / 2, lowest, highest)


@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        ({"a": spread(1.3, 1.5), "b, c": spread(2, 2.2)},
         "logbus sends 1.4 times as fast as a and 2.1 times as fast as b (c)"),
        ({"a": spread(0.4, 0.6), "b": spread(0.9, 1.2)},
         "logbus sends 0.50 times as fast as a; as fast as b, as far as the rounds tell"),
        ({name: spread(n, n + 1) for n, name in enumerate("abcd", 2)},
         "logbus sends 2.5 (a) to 5.5 times (d) as fast as 4 others"),
        ({}, ""),
    ],
)  # fmt: skip
def test_findings_claim_what_the_rounds_tell_apart(ratios: Mapping[str, Spread], said: str) -> None:
    assert finding("logbus sends", ratios) == said


def test_findings_over_cases_name_the_ends() -> None:
    same = {"a": spread(0.9, 1.3)}
    assert finding_over("logbus is", "Kafka", same) == (
        "logbus is as fast as Kafka, as far as the rounds tell"
    )
    alike = {"a": spread(1.21, 1.21), "b": spread(1.24, 1.24)}
    assert finding_over("logbus is", "Kafka", alike) == "logbus is 1.2 times as fast as Kafka"
    more = {**same, "b": spread(1.2, 1.2), "c": spread(0.5, 0.5)}
    assert finding_over("logbus is", "Kafka", more) == (
        "logbus is 1.2 times (b) as fast as Kafka; 0.50 times (c) as fast as Kafka; as fast in 1 "
        "of 3, as far as the rounds tell"
    )


def test_clients_have_tables_of_rates_and_of_sizes(tmp_path: Path) -> None:
    def took(us: float) -> list[Metrics]:
        return [{"µs a record": us, "CPU µs a record": us}]

    write(
        tmp_path / "clients.csv",
        Result("send", "", "", {"librdkafka": took(2.0), "logbus": took(1.0)}, ()),
        Result("disk", "", "", {"librdkafka": [{"one": 270.0}], "logbus": [{"one": 540.0}]}, ()),
    )
    found = tables_of_clients(tmp_path / "clients.csv")
    assert (
        "| `send` | send | librdkafka | 500,000 | 1,000,000 | 2.00, 1.00 | 2.00 (2.00-2.00) | 1.0 |"
        in found["rates"]
    )
    assert found["disk"].splitlines()[-1] == "| one | 270 | 540 | 2.00 |"


def test_streams_have_a_table_for_each_question(tmp_path: Path) -> None:
    def took(ms: float) -> list[Metrics]:
        return [{"triggerExecution": ms, "addBatch": ms / 2, "latestOffset": 1, "walCommit": 2}]

    results = [
        Result("noop", "", "ms", {"Kafka": took(180), "logbus": took(150)}, ()),
        Result("idle", "", "ms", {"nothing": took(1), "logbus": took(2)}, ()),
        Result("partitions", "", "ms",
               {"10 partitions": took(100), "1,000 partitions": took(300)}, ()),
        Result("read", "", "s", {"logbus": [{"load to the end": 2.5}]}, ()),
        Result("foreach-fast-keyed", "", "ms", {"Kafka": took(200), "logbus": took(100)}, ()),
    ]  # fmt: skip
    write(tmp_path / "stream.csv", *results)
    found = tables_of_streams(tmp_path / "stream.csv")
    assert found["micro-batches"].splitlines()[:4] == [
        "| case | Kafka | logbus | Kafka / logbus | goal |",
        "|---|---|---|---|---|",
        "| 5,000 records a second, `noop` | 180 ms | 150 ms | 1.20 (1.20-1.20) | 1.2 |",
        "| 5,000 a second, `noop`, `addBatch` alone | 90 ms | 75 ms | 1.20 (1.20-1.20) |  |",
    ]
    assert "| idle trigger | 1.00 ms | 2.00 ms | 0.50 (0.50-0.50) |" in found["nothing"]
    assert "| 1,000 | 300 ms | 1.00 ms | 2.00 ms |" in found["partitions"]
    assert "| a batch read | 2.50 s | 4, 2.2 |" in found["backlog"]
    assert found["start"] == ""
    assert "| 50,000 a second, 200 bytes, keyed, micro-batch | 200 ms | 100 ms |" in found["shapes"]
    titles = [
        chart.panels[0].title for chart in charts_of_streams(read_raw(tmp_path / "stream.csv"))
    ]
    assert (
        "With 1,000 partitions a micro-batch takes 3.0 times as long as with 10 partitions"
        in titles
    )


def test_typed_reads_are_beside_what_spark_decodes_and_what_is_ready_made(tmp_path: Path) -> None:
    def took(seconds: float) -> list[Metrics]:
        return [{"seconds": seconds}]

    json, few = "beside Kafka's source with JSON, 3 of 19 columns", "3 of 19 columns"
    in_turn = {"Kafka, from_json": took(6.0), "logbus, from_json": took(4.0),
               "logbus, columns": took(0.5)}  # fmt: skip
    disk = {"Parquet, ZSTD": [{"bytes": 1_000.0}], "columns, ZSTD": [{"bytes": 2_000.0}]}
    path = tmp_path / "typed.csv"
    write(
        path,
        Result("b, " + few, "", "s", {"ready-made Arrow": took(1.0), "logbus": took(2.0)}, ()),
        Result("k, " + json, "", "s", in_turn, ()),
        Result("f, bytes on disk of 1,000 flights", "", "bytes", disk, ()),
    )
    found = tables_of_typed(path)
    assert (
        f"| `k` | {json} | logbus, columns | 0.50 | Kafka, from_json | 6.00 "
        "| 12.00 (12.00-12.00) | 12 |" in found["reads"]
    )
    assert "| `b` | 3 of 19 columns | logbus | 2.00 | ready-made Arrow | 1.00 |" in found["reads"]
    assert found["bytes"].splitlines()[-1] == (
        "| `f` | bytes on disk of 1,000 flights | columns, ZSTD | 2,000 | 2.000 |"
    )
    kafka, ready_made = charts_of_typed(read_raw(path))[0].panels
    assert "reads 3 of 19 columns 12 times as fast as Kafka's source" in kafka.title
    assert "0.50 times as fast as ready-made Arrow" in ready_made.title


def test_a_long_title_fits_beside_its_labels(tmp_path: Path) -> None:
    bars = [Bar("a label that leaves the bars no more than half of it", spread(1, 2))]
    title = "A finding of many words is told in lines that end with the drawing " * 2
    [path] = draw_all([Chart("bars", "ms", [Panel(title, bars)])], tmp_path)
    lines = re.findall(r">([^<]* [^<]*)</", path.read_text())
    told = [line for line in lines if line in title]
    assert " ".join(told) == title.strip()
    assert max(map(len, told)) < 70


@pytest.mark.parametrize(("highest", "scale"), [(20.0, "100"), (20_000.0, "10,000")])
def test_bars_that_are_far_apart_are_on_a_logarithmic_scale(
    tmp_path: Path, highest: float, scale: str
) -> None:
    bars = [Bar("small", spread(10, 12)), Bar("large", spread(highest, highest))]
    [path] = draw_all([Chart("bars", "ms", [Panel("Both", bars)])], tmp_path)
    text = path.read_text()
    for words in ("small", "large", "Both"):
        assert words in text
    assert (f">{scale}<" in text) == (highest > 1_000)
