"""``logbus schemas`` as a user types it, and ``logbus registry`` as a process."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_logbus.cli import main
from spark_logbus.errors import EmbeddedServerError
from spark_logbus.local.registry import RegistryProcess
from spark_logbus.schemas.registry import SchemaRegistry
from tests.helpers import wait_until
from tests.servers.ports import refusing_address
from tests.servers.zookeeper import session

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
LATER = {**ORDER, "fields": [*ORDER["fields"], {"name": "n", "type": "int", "default": 0}]}
WRONG = {**ORDER, "fields": [{"name": "key", "type": "long"}]}

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(
    chroot: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    """Runs ``logbus schemas <words>``: exit code, output, messages."""
    monkeypatch.setenv("LOGBUS_ZOOKEEPER", chroot)

    def run(*words: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["logbus", "schemas", *words])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            main()
        sys.stdout.flush()
        shown = capfd.readouterr()
        code = ended.value.code
        return code if isinstance(code, int) else 0, shown.out, shown.err

    return run


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    made = {}
    for name, schema in (("order", ORDER), ("later", LATER), ("wrong", WRONG)):
        path = tmp_path / f"{name}.avsc"
        path.write_text(json.dumps(schema))
        made[name] = str(path)
    return made


def test_a_schema_from_registration_to_deletion(command: Command, files: dict[str, str]) -> None:
    assert command("list")[2].startswith("There are no schemas")
    made = command("register", "orders", files["order"])
    assert made == (0, "The schema is version 1 of orders, with the id 1.\n", "")
    assert command("register", "orders", files["order"]) == made
    code, out, _ = command("register", "orders", "-", "--json", stdin=json.dumps(LATER))
    assert json.loads(out) == {"subject": "orders", "version": 2, "id": 2, "references": []}
    assert [line.split() for line in command("list")[1].splitlines()] == [
        ["SUBJECT", "VERSIONS", "LATEST", "ID", "COMPATIBILITY", "MODE"],
        ["orders", "2", "2", "2", "BACKWARD", "READWRITE"],
    ]
    rows = [json.loads(line) for line in command("list", "orders", "-J")[1].splitlines()]
    assert [(row["version"], row["id"], row["deleted"]) for row in rows] == [
        (1, 1, False), (2, 2, False)]  # fmt: skip
    assert json.loads(command("show", "orders")[1]) == LATER
    assert json.loads(command("show", "orders", "-n", "1")[1]) == ORDER
    shown = json.loads(command("show", "--id", "1", "--json")[1])
    assert (shown["id"], shown["schema"], len(shown["fingerprint"])) == (1, ORDER, 16)
    gone = command("delete", "orders", "--version", "1")
    assert gone[1] == "1 version of orders soft-deleted: 1.\n"
    assert "1 version of orders" in command("delete", "orders")[1]
    assert command("delete", "orders", "--permanent")[0] == 1, "there was nobody to say yes"
    gone = command("delete", "orders", "--permanent", "--yes")
    assert gone[1] == "2 versions of orders deleted permanently: 1, 2.\n"
    code, out, err = command("show", "orders")
    assert (code, out, err) == (1, "", "Error: There is no subject 'orders'.\n")


def test_a_check_tells_what_stands_against_a_schema(
    command: Command, files: dict[str, str]
) -> None:
    command("register", "orders", files["order"])
    assert command("check", "orders", files["later"])[0] == 0
    code, out, _ = command("check", "orders", files["wrong"], "--json")
    row = json.loads(out)
    assert code == 1
    assert row["rule"] == "READER_FIELD_MISSING_DEFAULT_VALUE"
    assert (row["version"], row["reader"], row["place"]) == (1, "new", "fields[0]")
    code, out, err = command("register", "orders", files["wrong"])
    assert (code, out) == (1, "")
    assert "BACKWARD of the subject 'orders'" in err
    assert len(err.splitlines()) == 1
    code, _, err = command("check", "orders", "-", stdin='{"type": "itn"}')
    assert (code, "type: There is no type 'itn'" in err) == (1, True)
    code, _, err = command("check", "orders", "/no/such/file")
    assert (code, "Cannot read /no/such/file" in err) == (1, True)


def test_a_diff_tells_what_changed(command: Command, files: dict[str, str]) -> None:
    command("register", "orders", files["order"])
    assert "is the first" in command("diff", "orders")[2]
    command("register", "orders", files["later"])
    lines = command("diff", "orders")[1].splitlines()
    assert lines[0] == "orders: version 1 to version 2"
    assert lines[2].split() == ["fields[1]", "-", "n:", "int", "=", "0"]
    assert lines[3:] == [
        "Version 2 can read what is written with version 1.",
        "Version 1 can read what is written with version 2.",
    ]
    back = json.loads(command("diff", "orders", "2", "1", "--json")[1])
    assert back == {"place": "fields[1]", "before": "n: int = 0", "after": None}


def test_what_holds_is_shown_and_changed(command: Command, files: dict[str, str]) -> None:
    said = "The compatibility of all subjects without their own is BACKWARD.\n"
    assert command("config")[1] == said
    assert json.loads(command("config", "a", "--set", "full", "-J")[1]) == {
        "subject": "a",
        "compatibility": "FULL",
    }
    assert command("config", "a", "--unset")[1] == "The compatibility of a is BACKWARD.\n"
    assert "there are NONE, BACKWARD" in command("config", "--set", "sideways")[2]
    assert command("config", "--set", "NONE", "--unset")[0] == 2
    assert command("mode", "a", "--set", "READONLY")[1] == "The mode of a is READONLY.\n"
    assert "READONLY" in command("register", "a", files["order"])[2]
    assert command("mode", "a", "--unset")[1] == "The mode of a is READWRITE.\n"
    assert command("mode", "--set", "IMPORT")[0] == 0


def test_a_schema_is_registered_with_references(command: Command, files: dict[str, str]) -> None:
    command("register", "orders", files["order"])
    many = json.dumps({"type": "array", "items": "Order"})
    assert "no type 'Order'" in command("register", "many", "-", stdin=many)[2]
    done = command("register", "many", "-", "-r", "Order=orders:latest", "-J", stdin=many)
    assert json.loads(done[1])["references"] == [
        {"name": "Order", "subject": "orders", "version": 1}
    ]
    assert json.loads(command("show", "many")[1]) == json.loads(many)
    assert json.loads(command("show", "many", "--whole")[1])["items"] == ORDER
    assert command("register", "many", "-", "-r", "Order", stdin=many)[0] == 2
    assert "is referred to by version 1 of 'many'" in command("delete", "orders")[2]
    assert command("show")[0] == command("show", "many", "--id", "1")[0] == 2


# -- logbus registry ----------------------------------------------------------------------


@pytest.fixture
def registries(chroot: str, tmp_path: Path) -> Iterator[Callable[[str], RegistryProcess]]:
    started: list[RegistryProcess] = []

    def start(name: str) -> RegistryProcess:
        process = RegistryProcess(tmp_path / name, zookeeper=chroot)
        started.append(process)
        process.start()
        return process

    yield start
    for each in started:
        each.stop()


def register(url: str, subject: str, schema: object) -> dict[str, int]:
    request = urllib.request.Request(
        f"{url}/subjects/{subject}/versions",
        json.dumps({"schema": json.dumps(schema)}).encode(),
        {"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answered:
        made: dict[str, int] = json.load(answered)
        return made


def fields(count: int) -> object:
    made = [{"name": f"f{number}", "type": "int", "default": 0} for number in range(count)]
    return {"type": "record", "name": "R", "fields": made}


def test_two_registries_that_race_never_give_one_id_twice(
    registries: Callable[[str], RegistryProcess], chroot: str
) -> None:
    urls = [registries(name).url for name in ("one", "two")]

    def work(number: int) -> tuple[int, int]:
        made = register(urls[number % 2], "shared", fields(number))
        return made["version"], made["id"]

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(work, range(30)))
    assert sorted(made) == [(number, number) for number in range(1, 31)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(30))) == made
    with session(chroot) as opened:
        assert SchemaRegistry(opened).schema_ids("shared") == list(range(1, 31))


def test_a_registry_that_is_killed_starts_again_on_its_port(
    registries: Callable[[str], RegistryProcess],
) -> None:
    first = registries("one")
    url = first.url
    assert register(url, "a", fields(1)) == {"id": 1, "version": 1}
    first.kill()
    assert not first.running
    second = registries("one")
    assert second.url == url
    assert register(url, "a", fields(2)) == {"id": 2, "version": 2}


def test_a_registry_ends_at_once_on_a_signal_also_while_it_waits_for_zookeeper(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    with refusing_address() as address, out.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "spark_logbus.cli", "registry", "--port", "0",
             "--zookeeper", f"{address}/none"],
            stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            wait_until(lambda: "is waiting for ZooKeeper" in out.read_text(), deadline_s=60)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
    assert "stopped before it served" in out.read_text()


def test_a_registry_that_cannot_serve_says_why(
    chroot: str, tmp_path: Path, registries: Callable[[str], RegistryProcess]
) -> None:
    port = int(registries("one").url.rpartition(":")[2])
    second = RegistryProcess(tmp_path / "two", zookeeper=chroot, port=port)
    with pytest.raises(EmbeddedServerError, match=r"ended with code 1(.|\n)*Cannot listen on"):
        second.start()


def test_an_answer_of_a_registry_says_what_is_wrong(
    registries: Callable[[str], RegistryProcess],
) -> None:
    url = registries("one").url
    register(url, "a", fields(1))
    with pytest.raises(urllib.error.HTTPError) as refused:
        register(url, "a", "string")
    assert refused.value.code == 409
    refused.value.close()
