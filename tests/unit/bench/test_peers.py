"""Program ``scripts/bench peers``: what it does around its measurements."""

from __future__ import annotations

import ast
import sys
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock, patch

import pyarrow as pa
import pytest

from bench.kit import ROOT
from bench.kit.program import chosen
from bench.kit.raw import conditions_path, read_raw
from bench.kit.result import LOGBUS, Metrics
from bench.programs.clients.logbus_client import tails
from bench.programs.clients.work import CHECKSUMS, VALUES, Done, Work, tail
from bench.programs.peers import measuring, program
from bench.programs.peers.contenders import (
    KAFKA,
    LIBRDKAFKA,
    REPLICATED_ROWS,
    ROWS,
    Contender,
    JavaClient,
    PythonClient,
    Row,
    Task,
)
from bench.programs.peers.java_clients import SilentServerError, done_of
from bench.programs.peers.measuring import (
    COMPARED,
    ON_DISK,
    READ,
    RECORDS,
    SENT,
    VALUE_BYTES,
    Experiment,
    require_same,
)
from bench.programs.peers.servers import SERVERS, bytes_in
from bench.programs.report.questions import GRIDS
from bench.servers import ServerUnavailableError
from bench.servers.activemq import ActiveMq
from bench.servers.debian import unpacked

ALL_ROWS = {**ROWS, **REPLICATED_ROWS}
PEER = ROWS["batch-1"].contenders[0]
OWN = ROWS["batch-1"].contenders[-1]
ROW = Row("each by itself", (PEER, OWN))


def metrics(*, sent: float, on_disk: float = 270.0) -> Metrics:
    return {RECORDS: 1_000, SENT: sent, READ: 2 * sent, ON_DISK: on_disk, VALUE_BYTES: 200}


def raw() -> dict[str, dict[str, list[Metrics]]]:
    rounds = {
        PEER.name: [metrics(sent=20.0), metrics(sent=40.0)],
        OWN.name: [metrics(sent=10.0), metrics(sent=10.0)],
    }
    return {"batch-1": rounds}


@pytest.mark.parametrize("name", ALL_ROWS)
def test_every_row_has_logbus_and_known_servers(name: str) -> None:
    contenders = ALL_ROWS[name].contenders
    assert LOGBUS in [contender.name for contender in contenders]
    assert {contender.server for contender in contenders} <= set(SERVERS)
    assert len({contender.name for contender in contenders}) == len(contenders)


@pytest.mark.parametrize(
    "client",
    [
        one.client
        for row in ALL_ROWS.values()
        for one in row.contenders
        if isinstance(one.client, PythonClient)
    ],
    ids=lambda client: client.described,
)
def test_clients_in_python_have_the_functions_that_contenders_name(client: PythonClient) -> None:
    module = "librdkafka" if client.sends.system == "librdkafka" else "logbus_client"
    source = (
        ROOT / "bench" / "programs" / "clients" / f"{module}.py"
    ).read_text()  # what it imports may lack
    known = {each.name for each in ast.parse(source).body if isinstance(each, ast.FunctionDef)}
    assert {client.sends.name, client.reads} <= known


@pytest.mark.parametrize("name", REPLICATED_ROWS)
def test_replicas_are_compared_by_what_all_of_them_have(name: str) -> None:
    contenders = REPLICATED_ROWS[name].contenders
    assert len({each.acknowledged for each in contenders}) == 1
    assert len({each.flushed for each in contenders}) == 1
    settings = {each.name: each.client for each in contenders}
    assert {
        name: client.sends.acks if isinstance(client, PythonClient) else client.sends["acks"]
        for name, client in settings.items()
        if isinstance(client, PythonClient | JavaClient)
    } == {KAFKA: "all", LIBRDKAFKA: "all", LOGBUS: "replicated", "logbus, Arrow": "replicated"}


def test_rows_about_replicas_are_measured_where_these_are_asked_for() -> None:
    of_several = "copies-on-disk,copies-in-page-cache,failover"
    parse = program.PROGRAM.parser().parse_args
    assert parse([]).chosen == ",".join(ROWS)
    assert parse(["--replicas", "3"]).chosen == of_several
    for words in (
        ["--rows", "batch-1", "--replicas", "3"],
        ["--replicas", "3", "--rows", "batch-1"],
    ):
        assert (parse(words).chosen, parse(words).replicas) == ("batch-1", 3)


@pytest.mark.parametrize(
    ("words", "said"), [(["--rows", "failover"], "--replicas 3"), (["--replicas", "0"], "not 0")]
)
def test_replicas_that_cannot_be_are_refused(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["peers", *words])
    with pytest.raises(SystemExit, match=said):
        program.PROGRAM.main()


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


def test_peers_are_compared_in_what_they_send_read_and_store() -> None:
    found = {each.what: one.ratio for each, one in COMPARED.of(raw()).items()}
    assert found == {"producer": (3.0, 2.0, 4.0), "consumer": (3.0, 2.0, 4.0), "disk": (1, 1, 1)}


def test_tables_of_peers_have_a_column_for_each_experiment() -> None:
    known = {"peers": COMPARED.of(raw())}
    table = GRIDS["peers"]["producer"].markdown(known).splitlines()
    assert table[0].startswith("| beside | `batch-1` | `batch-50` | `batch-50, Arrow` |")
    assert table[2] == "| Kafka, Java | 3.0 (2.00-4.00) |  |  |  |  |  |"


def test_rates_that_are_left_out_have_no_ratio() -> None:
    some = raw()
    for metrics_of_round in some["batch-1"][PEER.name]:
        del metrics_of_round[READ]
    found = COMPARED.of(some)
    assert {each.what for each in found} == {"producer", "disk"}


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
    monkeypatch.setattr(measuring, "measured", measured)
    monkeypatch.setattr(sys, "argv", ["bench peers", "--rounds", "2", "--peers", ",".join(at_hand),
                                      "--rows", "batch-1", "--csv", str(path)])  # fmt: skip
    with patch.dict(program.PROGRAM.rows, {"batch-1": Experiment("batch-1", ROW)}):
        program.PROGRAM.main()
    assert asked == silent_in + 1
    found = read_raw(path)["batch-1"]
    assert found[OWN.name] == [metrics(sent=10.0)] * 2
    assert sum(map(bool, found.get(PEER.name, ()))) == (counted or 0)
    assert f"{PEER.name}: Expected 9 records" in conditions_path(path).read_text()
    compared = COMPARED.of(read_raw(path))
    assert any(each.beside == PEER.name for each in compared) == bool(counted)


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
    with pytest.raises(ServerUnavailableError, match="no apt-get on the PATH"):
        unpacked("peer", ["peer-server"])
