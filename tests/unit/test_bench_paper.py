"""What ``scripts/bench peers`` does around its measurements."""

from __future__ import annotations

import ast
import sys
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock, patch

import pyarrow as pa
import pytest
from rich.console import Console

from bench.charts import draw_all
from bench.clients.logbus_client import tails
from bench.clients.work import CHECKSUMS, VALUES, Done, Work, tail
from bench.harness import ROOT
from bench.paper import program, results
from bench.paper.contenders import KAFKA, LIBRDKAFKA, ROWS, Contender, PythonClient, Row, Task
from bench.paper.java_clients import SilentServerError, done_of
from bench.paper.measuring import ON_DISK, READ, RECORDS, SENT, VALUE_BYTES, require_same
from bench.paper.report import charts_of, ratios_of, tables
from bench.paper.servers import SERVERS, bytes_in
from bench.peers import PeerUnavailableError
from bench.peers.activemq import ActiveMq
from bench.peers.debian import unpacked
from bench.program import chosen
from bench.raw import RawResults, conditions_path, read_raw
from bench.result import LOGBUS, Metrics, Result

PEER = ROWS["batch-1"].contenders[0]
OWN = ROWS["batch-1"].contenders[-1]
ROW = {"batch-1": Row("each by itself", (PEER, OWN))}


def metrics(*, sent: float, on_disk: float = 270.0) -> Metrics:
    return {RECORDS: 1_000, SENT: sent, READ: 2 * sent, ON_DISK: on_disk, VALUE_BYTES: 200}


def result() -> Result:
    rounds = {
        PEER.name: [metrics(sent=20.0), metrics(sent=40.0)],
        OWN.name: [metrics(sent=10.0), metrics(sent=10.0)],
    }
    return Result("batch-1", "each by itself", SENT, rounds, (SENT, READ))


@pytest.mark.parametrize("name", ROWS)
def test_every_row_has_logbus_and_known_servers(name: str) -> None:
    contenders = ROWS[name].contenders
    assert LOGBUS in [contender.name for contender in contenders]
    assert {contender.server for contender in contenders} <= set(SERVERS)
    assert len({contender.name for contender in contenders}) == len(contenders)


@pytest.mark.parametrize(
    "client",
    [
        one.client
        for row in ROWS.values()
        for one in row.contenders
        if isinstance(one.client, PythonClient)
    ],
    ids=lambda client: client.described,
)
def test_clients_in_python_have_the_functions_that_contenders_name(client: PythonClient) -> None:
    module = "librdkafka" if client.sends.system == "librdkafka" else "logbus_client"
    source = (ROOT / "bench" / "clients" / f"{module}.py").read_text()  # what it imports may lack
    known = {each.name for each in ast.parse(source).body if isinstance(each, ast.FunctionDef)}
    assert {client.sends.name, client.reads} <= known


def test_who_is_tuned_is_measured_with_defaults_too() -> None:
    by_default = {each.name: each.client.described for each in ROWS["defaults"].contenders}
    tuned = {each.name for each in ROWS["throughput"].contenders if not each.is_own}
    assert tuned <= by_default.keys()
    assert by_default[LIBRDKAFKA].endswith("linger 5 ms; consume_by_default, with defaults")
    streams = by_default["RabbitMQ, stream"]
    assert by_default[KAFKA] == streams == "Java: sends with defaults; reads with defaults"


@pytest.mark.parametrize(
    ("wanted", "share", "records"),
    [(10_000_000, 1, 10_000_000), (200_000, 200, VALUES), (199_999, 10, 19_000), (5, 1, VALUES)],
)
def test_contenders_get_their_share_in_whole_rounds_of_values(
    wanted: int, share: int, records: int
) -> None:
    contender = Contender("slow", LOGBUS, "disk", PEER.client, share)
    assert contender.records(wanted) == records


@pytest.mark.parametrize(("offset", "count"), [(0, 3), (2, 1_500)])
def test_a_columns_checksum_is_that_of_its_values(offset: int, count: int) -> None:
    values = list(Work("", value_bytes=20).values(offset + count))
    column = pa.array(values, pa.binary()).slice(offset)
    assert tails(column) == sum(map(tail, values[offset:])) % CHECKSUMS


def test_checksums_of_work_are_those_of_its_values() -> None:
    work = Work("")
    assert work.checksum(2_345) == sum(map(tail, work.values(2_345))) % CHECKSUMS


def test_lost_and_wrong_records_end_the_run() -> None:
    task = Task("", "topic", 2_000, 200, None)
    expected = (Work("").checksum(2_000) + Work("").checksum(task.warm_up)) % CHECKSUMS
    count = 2_000 + task.warm_up
    require_same("logbus", task, Done(count - 1, 1, 1.0, checksum=expected))
    with pytest.raises(SystemExit, match=f"expected {count:,} records"):
        require_same("logbus", task, Done(count - 2, 1, 1.0, checksum=expected))
    with pytest.raises(SystemExit, match=f"with {expected + 1}"):
        require_same("logbus", task, Done(count - 1, 1, 1.0, checksum=expected + 1))


def test_the_last_line_of_a_java_client_counts() -> None:
    told = 'WARN a library says\n{"records": 5, "warm_up": 1, "seconds": 0.5, "checksum": 7}\n'
    assert done_of(told) == Done(5, 1, 0.5, checksum=7)


def test_the_table_of_peers_has_rates_and_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    with patch.object(results, "console", Console(width=160)):
        results.show(ROW["batch-1"], result())
    peer, own = (line for line in capsys.readouterr().out.splitlines() if "page cache" in line)
    assert "37.5 (25.0-50.0)" in peer
    assert "3.00 (2.00-4.00)" in peer
    assert "70.0" in peer
    assert "100 (100-100)" in own


def test_the_table_of_peers_says_who_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    rounds = {OWN.name: [metrics(sent=10.0)]}
    with patch.object(results, "console", Console(width=160)):
        results.show(ROW["batch-1"], Result("batch-1", "", SENT, rounds, ()))
    assert "not at hand" in capsys.readouterr().out


def test_charts_have_a_bar_for_each_figure_and_say_what_they_show(tmp_path: Path) -> None:
    some = result()
    some.rounds[PEER.name][0][ON_DISK] = 12.0  # less than the value: it is in memory
    producer, consumer, disk = charts_of({"batch-1": some.rounds})
    own, peer = producer.panels[0].bars
    assert [own.value[:3], peer.value[:3]] == [(100_000,) * 3, (37_500, 25_000, 50_000)]
    assert producer.alt == (
        "Each record by itself: logbus sends 3.0 times as fast as Kafka (Java)."
    )
    assert [bar.value.median for bar in consumer.panels[0].bars] == [50_000, 18_750]
    assert [bar.label for bar in disk.panels[0].bars] == [f"{LOGBUS} (page cache)"]
    for name in ("one", "two"):
        draw_all([producer, disk], tmp_path / name)
    drawn = (tmp_path / "one" / "peers-producer.svg").read_bytes()
    assert b"logbus sends 3.0 times as fast" in drawn
    assert (tmp_path / "two" / "peers-producer.svg").read_bytes() == drawn


def test_tables_of_peers_are_by_question_and_the_best_comes_first(tmp_path: Path) -> None:
    RawResults(tmp_path / "peers.csv").add(result())
    found = tables(tmp_path / "peers.csv")
    assert list(found) == ["producer", "consumer", "disk"]
    assert found["producer"].splitlines()[2:4] == [
        "| `batch-1` | **logbus** | page cache | 1,000 | 100,000 (100,000-100,000) |  |  |",
        "| `batch-1` | Kafka, Java | page cache | 1,000 | 37,500 (25,000-50,000) | "
        "3.00 (2.00-4.00) |  |",
    ]
    assert "(charts/peers-producer.svg)" in found["producer"]
    assert "| 70.0 (70.0-70.0) | 1.00 (1.00-1.00) |" in found["disk"]


def test_rates_that_are_left_out_have_no_ratio_and_no_bar(tmp_path: Path) -> None:
    some = result()
    for metrics_of_round in some.rounds[PEER.name]:
        del metrics_of_round[READ]
    RawResults(tmp_path / "peers.csv").add(some)
    found = tables(tmp_path / "peers.csv")
    assert "| Kafka, Java | page cache | 1,000 | left out |  |  |" in found["consumer"]
    assert "3.00 (2.00-4.00)" in found["producer"]
    _, consumer, _ = charts_of({"batch-1": some.rounds})
    assert [bar.label for bar in consumer.panels[0].bars] == [f"{LOGBUS} (page cache)"]
    assert not [of for of in ratios_of({"batch-1": some.rounds}) if of.what == "consumer"]


@pytest.mark.parametrize(
    ("silent_in", "counted"), [(0, None), (1, None), (2, 1)], ids=["warm-up", "first", "second"]
)
def test_a_server_that_stalls_is_left_out_of_further_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent_in: int, counted: int | None
) -> None:
    path, asked = tmp_path / "peers.csv", 0

    def measured(contender: Contender, *_: object, **__: object) -> Metrics:
        nonlocal asked
        if contender is PEER:
            asked += 1
            if asked > silent_in:
                raise SilentServerError("Expected 9 records, got no more after 5.")
        return metrics(sent=10.0)

    at_hand = {name: lambda: nullcontext(Mock(version="1")) for name in (PEER.server, LOGBUS)}
    monkeypatch.setattr(program, "SERVERS", at_hand)
    monkeypatch.setattr(program, "ROWS", ROW)
    monkeypatch.setattr(program, "measured", measured)
    monkeypatch.setattr(sys, "argv", ["bench peers", "--rounds", "2", "--peers", ",".join(at_hand),
                                      "--rows", "batch-1", "--csv", str(path)])  # fmt: skip
    program.main()
    assert asked == silent_in + 1
    found = read_raw(path)["batch-1"]
    assert found[OWN.name] == [metrics(sent=10.0)] * 2
    assert sum(map(bool, found.get(PEER.name, ()))) == (counted or 0)
    assert f"{PEER.name}: Expected 9 records" in conditions_path(path).read_text()
    assert (f"| {PEER.name}, Java |" in tables(path)["producer"]) == bool(counted)


def test_unknown_rows_are_refused_with_those_that_are_known() -> None:
    with pytest.raises(SystemExit, match="No row is called batch-2; use batch-1"):
        chosen("batch-1,batch-2", ROWS)


def test_holes_in_files_take_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "full").write_bytes(bytes(10_000))
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(1 << 24)
    assert bytes_in(tmp_path) == 10_000


def test_a_journal_counts_its_files_that_are_deleted(tmp_path: Path) -> None:
    with (tmp_path / "db-3.log").open("wb") as file:
        file.write(bytes(4_096))
        file.truncate(32 << 20)
    assert ActiveMq("", tmp_path, "").journal_bytes() == 2 * (32 << 20) + 4_096


def test_a_peer_of_debians_is_unavailable_without_apt_get(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PeerUnavailableError, match="no apt-get on the PATH"):
        unpacked("peer", ["peer-server"])
