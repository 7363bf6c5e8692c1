"""Benchmarks: what they do around what they measure."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple
from unittest.mock import Mock, patch

import pyarrow as pa
import pytest
from rich.console import Console

from bench.kit import program
from bench.kit.charts import draw_lines
from bench.kit.comparing import Ask, Compared, Comparing
from bench.kit.machine import described
from bench.kit.processes import Used, ticks_below, used_in
from bench.kit.program import Opening, Program, Whole, medians_table
from bench.kit.raw import conditions_of, read_raw
from bench.kit.result import LOGBUS, Metrics, Rounds, Spread
from bench.kit.rounds import CPU, RATE, SECONDS, in_turn, works_in_turn
from bench.kit.same import Rows, Same
from bench.kit.shapes import Shape
from bench.programs.clients.rows import COMPARED as CLIENTS
from bench.programs.clients.rows import JAVA, LIBRDKAFKA, TIME
from bench.programs.clients.work import Done, Work
from bench.programs.peers.measuring import COMPARED as PEERS
from bench.programs.peers.measuring import ON_DISK, VALUE_BYTES
from bench.programs.spark.rows import COMPARED as SPARK
from bench.programs.stream.queries import phases_of
from bench.servers import ServerUnavailableError
from bench.servers import at_hand as at_hand_module
from bench.servers.artifacts import jars_of
from bench.servers.at_hand import at_hand
from bench.servers.systems import stored

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
    with pytest.raises(ServerUnavailableError, match="no mvn on the PATH"):
        jars_of(pom)


def test_a_peer_is_unavailable_when_maven_fails(pom: Path, tmp_path: Path) -> None:
    install_maven(tmp_path, "#!/bin/sh\necho Unknown host\nexit 1\n")
    with pytest.raises(ServerUnavailableError, match="Unknown host"):
        jars_of(pom)


def test_jars_are_resolved_once_for_each_content_of_a_pom(pom: Path, tmp_path: Path) -> None:
    install_maven(tmp_path, MAVEN)
    found = jars_of(pom)
    assert [jar.name for jar in found] == ["one.jar"]
    (tmp_path / "bin" / "mvn").unlink()
    assert jars_of(pom) == found
    pom.write_text("<project>of another version</project>")
    with pytest.raises(ServerUnavailableError):
        jars_of(pom)


def test_a_peer_that_is_not_at_hand_is_left_out_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @contextmanager
    def start(reason: str) -> Iterator[str]:
        if reason:
            raise ServerUnavailableError(reason)
        yield "a server"

    with ExitStack() as stack, patch.object(at_hand_module, "console", Console(width=120)):
        assert at_hand(stack, "Kafka", lambda: start("")) == "a server"
        assert at_hand(stack, "Kafka", lambda: start("Install Maven.")) is None
    assert "Kafka is left out, as it is not at hand: Install Maven." in capsys.readouterr().out


def test_conditions_name_the_versions_of_what_is_installed() -> None:
    lines = described("pyarrow", "a-package-that-nobody-has")
    assert f"pyarrow {pa.__version__}" in lines[1]
    assert "nobody" not in lines[1]


def measured(seconds: float) -> Rounds:
    return {
        "Kafka": [{SECONDS: 3.0}, {SECONDS: 2.0}],
        LOGBUS: [{SECONDS: seconds}, {SECONDS: 2 * seconds}],
    }


def program_of(rows: Sequence[str], *, by_default: Sequence[str] = ()) -> Program[float]:
    def open_bench(opening: Opening) -> float:
        opening.tell(f"Rows are {' and '.join(opening.rows)}.")
        return float(opening.args.rounds)

    return Program(
        name="trial",
        description="Measures.",
        rows={name: Whole(f"row {name}", "s", measured) for name in rows},
        by_default=by_default,
        open_bench=open_bench,
        conditions=lambda bench, _: [f"A bench of {bench:g}."],
        comparing=Comparing({SECONDS: ""}, goals={Compared("a", "", LOGBUS, "Kafka"): 1.2}),
    )


def test_flags_name_the_rows_and_those_that_are_left_out_by_default() -> None:
    parser = program_of("ab", by_default="a").parser()
    assert "a: row a; b: row b; default: a" in " ".join(parser.format_help().split())
    args = parser.parse_args([])
    assert (args.chosen, args.rounds, args.csv) == ("a", 5, None)


def test_a_program_keeps_and_shows_its_rows_and_conditions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trial.csv"
    monkeypatch.setattr(sys, "argv", ["bench trial", "--rounds", "2", "--csv", str(path)])
    with patch.object(program, "console", Console(width=120)):
        program_of("ab").main()
        shown = capsys.readouterr().out
        assert "a: row a, s; rounds: 2" in shown
        assert "│ 1.00 (0.50-1.50) │ 1.2" in shown
        monkeypatch.setattr(sys, "argv", ["bench trial", "--rows", "b", "--from", str(path)])
        program_of("ab").main()
    again = capsys.readouterr().out
    assert "b: row b, s; rounds: 2" in again
    assert "a: row a" not in again
    assert read_raw(path) == {"a": measured(2.0), "b": measured(2.0)}
    told = conditions_of(path)
    assert told[:2] == ["Rows: a; b", "Rows are a and b."]
    assert told[-1] == "A bench of 2."


def test_results_of_something_else_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench trial", "--from", str(tmp_path / "none.csv")])
    with pytest.raises(SystemExit, match="Name a file that --csv wrote"):
        program_of("a").main()


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


def test_work_is_timed_in_turn_with_its_rate() -> None:
    done: list[str] = []
    works = {"a": lambda: done.append("a"), "b": lambda: done.append("b")}
    took = works_in_turn(works, records=10, rounds=1)
    assert done == ["b", "a", "a", "b"]
    [metrics] = took["a"]
    assert set(metrics) == {SECONDS, CPU, RATE}
    assert metrics[RATE] == pytest.approx(10 / metrics[SECONDS])


def test_ratios_are_above_one_where_logbus_is_ahead() -> None:
    comparing = Comparing({SECONDS: "time", RATE: "rate"}, rates=[RATE])
    rounds: Rounds = {
        "Kafka": [{SECONDS: 3.0, RATE: 30.0}, {SECONDS: 2.0, RATE: 40.0}, {}],
        LOGBUS: [{SECONDS: 2.0, RATE: 60.0}, {SECONDS: 4.0, RATE: 20.0}, {SECONDS: 1.0}],
    }
    found = comparing.of({"row": rounds, "row, alone": {LOGBUS: rounds[LOGBUS]}})
    assert {each.what: one.ratio for each, one in found.items()} == {
        "time": Spread(1.0, 0.5, 1.5),
        "rate": Spread(1.25, 0.5, 2.0),
    }
    assert found[Compared("row", "time", LOGBUS, "Kafka")][1:] == (2.0, 2.5)


def test_what_was_not_measured_or_took_nothing_is_not_compared() -> None:
    comparing = Comparing({"ms": ""})
    assert comparing.of({"row": {"Kafka": [{}], LOGBUS: [{"ms": 1.0}]}}) == {}
    assert comparing.of({"row": {"Kafka": [{"ms": 0.0}], LOGBUS: [{"ms": 1.0}]}}) == {}
    assert comparing.of({"row": {"Kafka": [{"ms": 1.0}], LOGBUS: [{"ms": 0.0}]}}) == {}


def test_what_a_record_takes_beside_its_value_is_compared() -> None:
    def stored(size: float) -> list[Metrics]:
        return [{ON_DISK: size, VALUE_BYTES: 200.0}]

    rounds = {"Kafka": stored(270.0), "in memory": stored(12.0), LOGBUS: stored(340.0)}
    [(compared, found)] = PEERS.of({"batch-1": rounds}).items()
    assert compared == ("batch-1", "disk", LOGBUS, "Kafka")
    assert found.ratio.median == 0.5


def test_comparisons_are_asked_for_by_patterns() -> None:
    known = {"spark": SPARK.of({"read-200, all columns": spark_rounds()})}
    asked = Ask("spark", "read-.*", "all columns", beside="Kafka")
    assert [found.ratio.median for found in asked.of(known).values()] == [4.0]
    assert Ask("spark", "read").of(known) == {}
    assert Ask("clients").of(known) == {}


@pytest.mark.parametrize("contenders", [2, 10])
def test_all_medians_are_shown(contenders: int, capsys: pytest.CaptureFixture[str]) -> None:
    rounds = {f"c{n}": [{"ms": 100.0 + n}, {"ms": 200.0 + n}] for n in range(contenders)}
    Console(width=120).print(medians_table(rounds, Comparing({"ms": ""}, own="c0")))
    shown = capsys.readouterr().out
    for n in range(contenders):
        assert f"c{n} " in shown
        assert f" {150 + n} " in shown
    assert "c0 beside c1" in shown


def test_phases_add_up_to_the_whole_micro_batch() -> None:
    report = {"durationMs": {"triggerExecution": 100, "addBatch": 60, "walCommit": 30}}
    phases = phases_of([report])
    assert phases["rest"] == [10]
    whole = phases.pop("triggerExecution")
    assert [sum(values) for values in zip(*phases.values(), strict=True)] == whole == [100]


def test_work_reaches_a_client_process_unchanged() -> None:
    work = Work("send", "librdkafka", records=7, batch_records=50, flushed=True)
    assert Work(**json.loads(json.dumps(asdict(work)))) == work
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
    system = Mock(data=tmp_path, batch_prefix=struct.Struct(prefix))
    assert stored(system, "t", partitions=2) == (3, 100 + 7 + 30 + 3 * 12)


def test_clients_are_compared_with_the_peers_that_are_at_hand() -> None:
    rounds = {LIBRDKAFKA: [{TIME: 3.0}], LOGBUS: [{TIME: 2.0}]}
    [(compared, found)] = CLIENTS.of({"iterate": rounds}).items()
    assert compared == ("iterate", "", LOGBUS, LIBRDKAFKA)
    assert found.ratio == (1.5, 1.5, 1.5)
    assert CLIENTS.goals[compared] == 1.8
    assert CLIENTS.goals[compared._replace(beside=JAVA)] == 1.0


def spark_rounds() -> dict[str, list[Metrics]]:
    theirs = [{SECONDS: 6.0, CPU: 8.0}, {SECONDS: 10.0, CPU: 8.0}]
    own = {SECONDS: 2.0, CPU: 2.0}
    return {"Kafka": theirs, "logbus": [own, own]}


def test_each_way_of_logbus_is_shown_beside_each_of_kafkas() -> None:
    rounds = spark_rounds()
    rounds["Kafka, tuned"] = rounds["logbus, exactly once"] = rounds["Kafka"]
    found = SPARK.of({"read-200, all columns": rounds, "read-100, all columns": rounds})
    of_time = [each for each in found if each[:2] == ("read-200", "all columns")]
    assert [(each.own, each.beside) for each in of_time] == [
        ("logbus", "Kafka"), ("logbus", "Kafka, tuned"),
        ("logbus, exactly once", "Kafka"), ("logbus, exactly once", "Kafka, tuned"),
    ]  # fmt: skip
    assert found[of_time[0]].ratio == (4.0, 3.0, 5.0)
    assert [SPARK.goals.get(each) for each in of_time] == [4.0, 2.2, None, None]
    cpu = Compared("read-100", "all columns, CPU", "logbus", "Kafka")
    assert found[cpu].ratio.median == 4.0
    assert Compared("read-100", "all columns", "logbus", "Kafka, tuned") not in SPARK.goals


def test_nothing_is_compared_where_kafka_is_not_at_hand() -> None:
    rounds = spark_rounds()
    del rounds["Kafka"]
    assert SPARK.of({"read-200, all columns": rounds}) == {}


def test_rows_that_differ_end_the_benchmark() -> None:
    same = Same()
    same.require("Kafka", Rows(2, 7))
    same.require("logbus", Rows(2, 7))
    with pytest.raises(SystemExit, match=r"logbus has .*checksum=8"):
        same.require("logbus", Rows(2, 8))
    with pytest.raises(SystemExit, match="logbus has 3, what is written 2"):
        Same(2).require("logbus", 3)


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
