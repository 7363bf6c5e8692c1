"""What benchmarks do around what they measure."""

from __future__ import annotations

import csv
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pyarrow as pa
import pytest
from rich.console import Console

from bench import program
from bench import result as results
from bench.charts import draw_lines
from bench.clients import results as clients_results
from bench.clients.rows import JAVA, LIBRDKAFKA, TIME
from bench.clients.systems import stored_in
from bench.clients.work import Done, Work
from bench.cpu import Used, ticks_below, used_in
from bench.machine import described
from bench.peers import PeerUnavailableError
from bench.peers.artifacts import jars_of
from bench.program import at_hand, parser_of
from bench.raw import RawResults
from bench.result import LOGBUS, Metrics, Result
from bench.rounds import in_turn
from bench.shapes import Shape
from bench.spark import results as spark_results
from bench.spark.rows import Rows, Same
from bench.stream.queries import phases_of

# Does what the real one does when it finds everything: puts jars where it is told.
MAVEN = """\
#!/bin/sh
for argument in "$@"; do
  case $argument in -DoutputDirectory=*) directory=${argument#*=} ;; esac
done
/bin/mkdir "$directory" && : > "$directory/one.jar"
"""


class Named(NamedTuple):
    name: str


@pytest.fixture
def pom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pom, an empty cache, and an empty folder ``bin`` as the PATH."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    path = tmp_path / "peer.xml"
    path.write_text("<project/>")
    return path


def install_maven(tmp_path: Path, script: str) -> None:
    maven = tmp_path / "bin" / "mvn"
    maven.write_text(script)
    maven.chmod(0o755)


def test_a_peer_is_unavailable_without_maven(pom: Path) -> None:
    with pytest.raises(PeerUnavailableError, match="no mvn on the PATH"):
        jars_of(pom)


def test_a_peer_is_unavailable_when_maven_fails(pom: Path, tmp_path: Path) -> None:
    install_maven(tmp_path, "#!/bin/sh\necho Unknown host\nexit 1\n")
    with pytest.raises(PeerUnavailableError, match="Unknown host"):
        jars_of(pom)


def test_jars_are_resolved_once_for_each_content_of_a_pom(pom: Path, tmp_path: Path) -> None:
    install_maven(tmp_path, MAVEN)
    found = jars_of(pom)
    assert [jar.name for jar in found] == ["one.jar"]
    (tmp_path / "bin" / "mvn").unlink()
    assert jars_of(pom) == found
    pom.write_text("<project>of another version</project>")
    with pytest.raises(PeerUnavailableError):
        jars_of(pom)


def test_a_peer_that_is_not_at_hand_is_left_out_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @contextmanager
    def start(reason: str) -> Iterator[str]:
        if reason:
            raise PeerUnavailableError(reason)
        yield "a server"

    with ExitStack() as stack, patch.object(program, "console", Console(width=120)):
        assert at_hand(stack, "Kafka", lambda: start("")) == "a server"
        assert at_hand(stack, "Kafka", lambda: start("Install Maven.")) is None
    assert "Kafka is left out, as it is not at hand: Install Maven." in capsys.readouterr().out


def test_conditions_name_the_versions_of_what_is_installed() -> None:
    lines = described("pyarrow", "a-package-that-nobody-has")
    assert f"pyarrow {pa.__version__}" in lines[1]
    assert "nobody" not in lines[1]


def test_flags_name_the_rows_and_those_that_are_left_out_by_default() -> None:
    parser = parser_of("Measures.", rows=["a", "b"], by_default=["a"], rounds=5)
    assert "of a, b; default: a" in parser.format_help()
    args = parser.parse_args([])
    assert (args.rows, args.rounds, args.csv) == ("a", 5, None)


def test_every_second_round_is_in_reverse_order() -> None:
    one, two = Named("one"), Named("two")
    seen: list[tuple[str, bool]] = []

    def measure(contender: Named, counts: bool) -> dict[str, float]:
        seen.append((contender.name, counts))
        return {"ms": float(len(seen))}

    took = in_turn([one, two], measure, rounds=2)
    assert seen == [("two", False), ("one", False), ("one", True), ("two", True),
                    ("two", True), ("one", True)]  # fmt: skip
    assert took == {"one": [{"ms": 3.0}, {"ms": 6.0}], "two": [{"ms": 4.0}, {"ms": 5.0}]}


def test_ratios_are_above_one_where_logbus_is_faster(tmp_path: Path) -> None:
    rounds = {"Kafka": [{"ms": 3.0}, {"ms": 2.0}], "logbus": [{"ms": 2.0}, {"ms": 4.0}]}
    result = Result("noop", "micro-batches", "ms", rounds, ("ms",))
    assert result.ratios("Kafka", "ms") == [1.5, 0.5]
    RawResults(tmp_path / "raw.csv").add(result)
    with (tmp_path / "raw.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert lines[1] == {
        "row": "noop", "run": "1", "contender": "Kafka", "round": "2", "metric": "ms",
        "value": "2.0",
    }  # fmt: skip
    assert len(lines) == 4


@pytest.mark.parametrize("contenders", [2, 10])
def test_all_medians_are_shown(contenders: int, capsys: pytest.CaptureFixture[str]) -> None:
    rounds = {f"c{n}": [{"ms": 100.0 + n}, {"ms": 200.0 + n}] for n in range(contenders)}
    with patch.object(results, "console", Console(width=120)):
        Result("row", "title", "ms", rounds, (), own="c0").show()
    shown = capsys.readouterr().out
    for n in range(contenders):
        assert f"c{n} " in shown
        assert f" {150 + n} " in shown


def test_phases_add_up_to_the_whole_micro_batch() -> None:
    report = {"durationMs": {"triggerExecution": 100, "addBatch": 60, "walCommit": 30}}
    phases = phases_of([report])
    assert phases["rest"] == [10]
    whole = phases.pop("triggerExecution")
    assert [sum(values) for values in zip(*phases.values(), strict=True)] == whole == [100]


def test_work_reaches_a_client_process_unchanged() -> None:
    work = Work("send", "librdkafka", records=7, batch_records=50, flushed=True)
    assert Work.from_json(work.to_json()) == work
    assert [len(value) for value in work.values(3)] == [200] * 3


def test_times_of_clients_are_those_of_one_record() -> None:
    done = Done(1_000, 10, seconds=0.5, cpu_seconds=0.25, waits_s=[0.001] * 99 + [0.002])
    metrics = done.metrics()
    assert (metrics[TIME], metrics["CPU µs a record"]) == (500, 250)
    assert metrics["p50, µs"] == 1_000 < metrics["p99, µs"]


@pytest.mark.parametrize("prefix", ["<qI", ">qi"])
def test_record_batches_of_segment_files_are_counted(tmp_path: Path, prefix: str) -> None:
    for number, lengths in enumerate(([100, 7], [30])):
        folder = tmp_path / f"t-{number}"
        folder.mkdir()
        data = b"".join(struct.pack(prefix, 0, length) + bytes(length) for length in lengths)
        (folder / "00000000000000000000.log").write_bytes(data)
    stored = stored_in(tmp_path, "t", partitions=2, prefix=struct.Struct(prefix))
    assert stored == (3, 100 + 7 + 30 + 3 * 12)


def test_the_table_of_clients_says_which_peer_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rounds = {LIBRDKAFKA: [{TIME: 3.0}], LOGBUS: [{TIME: 2.0}]}
    with patch.object(clients_results, "console", Console(width=160)):
        lines = clients_results.Lines()
        lines.add(Result("iterate", "reads", TIME, rounds, (TIME,)), {JAVA: 1.0, LIBRDKAFKA: 1.8})
        lines.show()
    java, librdkafka = (line for line in capsys.readouterr().out.splitlines() if "iterate" in line)
    assert "not at hand" in java
    assert "1.50 (1.50-1.50)" in librdkafka
    assert "1.8" in librdkafka


def spark_rounds() -> dict[str, list[Metrics]]:
    theirs = [{"seconds": 6.0, "CPU s": 8.0, "records": 1_000.0},
              {"seconds": 10.0, "CPU s": 8.0, "records": 1_000.0}]  # fmt: skip
    own = {"seconds": 2.0, "CPU s": 2.0, "records": 1_000.0}
    return {"Kafka": theirs, "logbus": [own, own]}


def test_each_way_of_logbus_is_shown_beside_each_of_kafkas() -> None:
    rounds = spark_rounds()
    rounds["Kafka, tuned"] = rounds["logbus, exactly once"] = rounds["Kafka"]
    lines = spark_results.lines_of("read-200", "all columns", rounds)
    assert [(line.own, line.beside) for line in lines] == [
        ("logbus", "Kafka"), ("logbus", "Kafka, tuned"),
        ("logbus, exactly once", "Kafka"), ("logbus, exactly once", "Kafka, tuned"),
    ]  # fmt: skip
    assert lines[0].ratios == [3.0, 5.0]
    assert lines[0].cells[3:] == ("500", "Kafka", "133", "4.00 (3.00-5.00)", "4.00", "4.0")
    assert [line.goal for line in lines] == [4.0, 2.2, None, None]
    [_, tuned, *_] = spark_results.lines_of("read-100", "all columns", rounds)
    assert tuned.goal is None


def test_nothing_is_compared_where_kafka_is_not_at_hand() -> None:
    rounds = spark_rounds()
    del rounds["Kafka"]
    result = Result("read-200", "all columns; 200 bytes", "seconds", rounds, ("seconds",))
    assert spark_results.lines_of("read-200", "all columns", rounds) == []
    told = spark_results.told(result)
    assert told == "read-200, all columns, records/s: logbus 500."


def test_rows_that_differ_end_the_benchmark() -> None:
    same = Same(2)
    same.require("Kafka", Rows(2, 7))
    same.require("logbus", Rows(2, 7))
    with pytest.raises(SystemExit, match=r"logbus has .*checksum=8"):
        same.require("logbus", Rows(2, 8))
    with pytest.raises(SystemExit, match="expected 2 rows, got 3"):
        same.require("logbus", Rows(3, 7))


@pytest.mark.parametrize("batch_records", [None, 7])
def test_both_logs_are_sent_the_same_records(batch_records: int | None) -> None:
    records = 10_004
    shape = Shape(value_bytes=33, keyed=True, batch_records=batch_records)
    pieces = [*shape.pieces(records)]
    assert max(piece.num_rows for piece in pieces) == (batch_records or 10_000)
    table = pa.Table.from_batches(pieces)
    assert table == pa.Table.from_batches(Shape(value_bytes=33, keyed=True).pieces(records))
    assert table.column("key").to_pylist() == [b"%016d" % number for number in range(records)]
    values = table.column("value").to_pylist()
    assert {len(value) for value in values} == {33}
    assert len(set(values)) == records


def test_processors_time_is_that_of_a_process_and_of_all_below_it() -> None:
    stat = "7 (a (b) c) S 3 7 7 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 5"
    assert used_in(stat) == Used(parent=3, ticks=100)
    processes = {3: Used(1, 1), 7: Used(3, 10), 8: Used(7, 100), 9: Used(1, 1_000)}
    assert ticks_below(3, processes) == 111


def test_a_chart_is_an_svg_with_its_finding_and_all_series(tmp_path: Path) -> None:
    path = tmp_path / "chart.svg"
    series = {"logbus": [(1.0, 2.0), (1_000.0, 3.0)], "Kafka": [(1.0, 4.0)]}
    draw_lines(path, series, title="It grows", x="partitions", y="s")
    text = path.read_text()
    for words in ("<svg", "It grows", "logbus", "Kafka", "1,000"):
        assert words in text
