"""``logbus up`` and ``logbus broker`` as processes: signals, restarts, refusals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_logbus.client import Admin, Cluster, Producer
from tests.helpers import process_is_gone, wait_until

DEADLINE_S = 60


class Up:
    """One run of ``logbus up`` on a directory, with what it printed."""

    def __init__(self, directory: Path, output: Path, *options: str) -> None:
        self._directory = directory
        self.output = output
        with self.output.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "spark_logbus.cli", "up", "--data", directory, *options],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
            )

    @property
    def shown(self) -> str:
        return self.output.read_text()

    def ready(self) -> Up:
        wait_until(
            lambda: "Ctrl-C stops" in self.shown or self.process.poll() is not None,
            deadline_s=DEADLINE_S,
            message="the cluster to be up",
        )
        assert self.process.poll() is None, self.shown
        return self

    @property
    def addresses(self) -> list[str]:
        """ZooKeeper's and the brokers', as a user reads them."""
        return re.findall(r"^(?:ZooKeeper|broker \d) +(\S+)", self.shown, re.MULTILINE)

    @property
    def schemas(self) -> str:
        """The schema registry's URL."""
        [url] = re.findall(r"^schemas +(\S+)", self.shown, re.MULTILINE)
        return str(url)

    def children(self) -> list[int]:
        """Every process that works on the directory, but for ``up`` itself."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes()
                inside = Path(os.readlink(entry / "cwd")).is_relative_to(self._directory)
            except OSError:
                continue
            if int(entry.name) != self.process.pid and (
                inside or str(self._directory).encode() in command
            ):
                found.append(int(entry.name))
        return found

    def end(self, number: signal.Signals) -> int:
        """The exit code after a signal; all its children must be gone by then."""
        children = self.children()
        self.process.send_signal(number)
        code = self.process.wait(DEADLINE_S)
        wait_until(
            lambda: all(map(process_is_gone, children)), deadline_s=60, message="the children to go"
        )
        return code


def subjects(url: str) -> object:
    with urllib.request.urlopen(f"{url}/subjects", timeout=DEADLINE_S) as answered:
        return json.load(answered)


Start = Callable[..., Up]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts ``logbus up`` on one and the same directory; ends what a failed test leaves."""
    started: list[Up] = []

    def run(*options: str) -> Up:
        output = tmp_path / f"{len(started)}.out"
        started.append(Up(tmp_path / "data", output, *options))
        return started[-1]

    yield run
    for up in started:
        if up.process.poll() is None:
            up.end(signal.SIGKILL)


@pytest.mark.long
def test_data_and_ports_survive_every_way_to_stop(start: Start) -> None:
    """SIGTERM, Ctrl-C and SIGKILL: nothing is left running, and the next run goes on."""
    up = start("--brokers", "2").ready()
    addresses = up.addresses
    assert len(addresses) == 3
    assert len(up.children()) == 4  # and the registry
    url = up.schemas
    assert subjects(url) == []
    with Cluster.from_zookeeper(addresses[0]) as cluster, Producer(cluster) as producer:
        Admin(cluster).create_topic("kept", partitions=2)
        for value in (b"one", b"two", b"three"):
            producer.send("kept", value).result(60)
    assert up.end(signal.SIGTERM) == 0
    assert up.shown.endswith("Stopped.\n")

    for number, code in ((signal.SIGINT, 0), (signal.SIGKILL, -signal.SIGKILL)):
        up = start().ready()  # as many brokers as before
        assert up.addresses == addresses
        assert up.schemas == url
        assert kept(addresses[0]) == 3
        assert up.end(number) == code

    up = start("--brokers", "1").ready()
    wait_until(lambda: "holds the records of 2 brokers, and only 1 run" in up.shown)
    assert up.end(signal.SIGTERM) == 0


def test_a_signal_during_the_start_ends_it(start: Start) -> None:
    up = start()
    wait_until(up.children, deadline_s=DEADLINE_S, message="the first child")
    assert up.end(signal.SIGTERM) == 0
    assert "Traceback" not in up.shown


@pytest.mark.long
def test_a_directory_belongs_to_one_run_and_deaths_are_told(start: Start) -> None:
    up = start().ready()
    second = start()
    assert second.process.wait(DEADLINE_S) == 1
    assert re.search(
        r"^Error: The directory .*/data/zookeeper is in use by .*; stop that one, or choose",
        second.shown,
        re.MULTILINE,
    )
    assert "Traceback" not in second.shown

    broker = next(pid for pid in up.children() if b"broker.toml" in command_of(pid))
    os.kill(broker, signal.SIGKILL)
    wait_until(lambda: "Broker 1 has died" in up.shown, message="the death to be told")
    zookeeper = next(pid for pid in up.children() if b"java" in command_of(pid))
    os.kill(zookeeper, signal.SIGKILL)
    wait_until(lambda: "ZooKeeper has died" in up.shown, message="the death to be told")
    assert up.end(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (None, "Cannot read the configuration file"),
        ("[broker", "is not valid TOML"),
        ("[brokers]\nid = 1", "Unknown key 'brokers'"),
        ("[broker]\nid = 1", "[broker] of "),  # brackets are shown, not taken for markup
        ('[broker]\nid = "a"\ndata_dir = "d"', "must be a whole number, got 'a'"),
        ('[broker]\nid = 1\ndata_dir = "d"\nport = 99999', "port must be 0 to 65535, got 99999"),
    ],
)
def test_broker_configurations_that_are_refused(
    tmp_path: Path, text: str | None, named: str
) -> None:
    config = tmp_path / "broker.toml"
    if text is not None:
        config.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "spark_logbus.cli", "broker", "--config", config],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert named in done.stderr
    assert "broker.toml" in done.stderr or "port" in named
    assert len(done.stderr.splitlines()) == 1


def kept(zookeeper: str) -> int:
    """Records of the topic, once each leader has told its end: they lead a moment after they
    are ready."""
    with Cluster.from_zookeeper(zookeeper) as cluster:

        def ends() -> list[int] | None:
            partitions = Admin(cluster).describe(["kept"], ends=True)["kept"].partitions.values()
            known = [p.ends.high_watermark for p in partitions if p.ends is not None]
            return known if len(known) == len(partitions) else None

        found: list[int] | None = wait_until(ends, deadline_s=60)
        return sum(found or [])


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
