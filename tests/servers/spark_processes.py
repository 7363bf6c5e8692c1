"""Spark as servers: a standalone cluster, and Spark Connect, from PySpark's own jars.

All listen on loopback at ports that they choose, and die with the tests.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from spark_logbus.local.processes import spawn, stop
from tests.helpers import wait_until
from tests.servers import jvm
from tests.servers.hanging import descendants
from tests.servers.spark import PROJECT

# On the command lines of Spark's Python processes: the one that plans a stream, those of tasks.
PLANNER = "python_streaming_source_runner"
WORKER = "pyspark.daemon\0pyspark.worker"
PYTHON = "-m\0pyspark."  # all of them, also those that commit
EXECUTOR = "CoarseGrainedExecutorBackend"

_SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
_SPARK_SUBMIT = _SPARK_CLASS.with_name("spark-submit")
_START_S = 120.0
_SUBMIT_S = 240.0


def running(parent: int, program: str) -> list[int]:
    """The processes below ``parent`` that have ``program`` on their command line."""
    return [pid for pid in descendants(parent) if program in _command_line(pid)]


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""  # it ended meanwhile


def environment(java_home: str | None = None) -> dict[str, str]:
    """Returns variables with which servers, executors and drivers find this Python, this logbus
    and a Java."""
    paths = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "JAVA_HOME": java_home or os.environ["JAVA_HOME"],
        "PYTHONFAULTHANDLER": "1",  # for ``hanging.stacks``
    }


def bundled_java_home(directory: Path) -> str:
    """The Java home that logbus makes where the machine has no Java."""
    nothing = directory / "no-programs"
    nothing.mkdir()
    env = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    done = subprocess.run(
        [sys.executable, "-m", "spark_logbus.java"],
        env={**env, "PATH": str(nothing)},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


class Driver:
    """A driver program, with the processes that it starts, to be killed."""

    def __init__(
        self, module: str, *arguments: str, log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        base = environment()
        paths = [*filter(None, [(env or {}).get("PYTHONPATH")]), base["PYTHONPATH"]]
        self.log = log
        self.process = spawn(
            [sys.executable, "-m", module, *arguments],
            output=log,
            cwd=PROJECT,
            env={**base, **(env or {}), "PYTHONPATH": os.pathsep.join(paths)},
        )

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def alive(self) -> bool:
        """True; fails with the end of its log if it has ended."""
        assert not self.ended, self.said()[-5000:]
        return True

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def below(self, program: str) -> list[int]:
        """The processes below it that have ``program`` on their command line."""
        return running(self.process.pid, program)

    def signal(self, number: signal.Signals) -> None:
        """Send it to the program, its JVM, executors and Python workers."""
        for pid in (self.process.pid, *descendants(self.process.pid)):
            send(pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()


def send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
        os.kill(pid, number)


@dataclass
class Server:
    """One JVM, known by what it writes to its log."""

    process: subprocess.Popen[bytes]
    log: Path

    def told(self, pattern: str) -> str:
        """Waits until the log has ``pattern``; returns the match of its group."""

        def look() -> str | None:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            found = re.search(pattern, self.log.read_text(errors="replace"))
            return found[1] if found else None

        return wait_until(look, deadline_s=_START_S, message=f"{pattern} in {self.log}") or ""


@dataclass
class Spark:
    """Running Spark: the URL for sessions, and its JVMs."""

    url: str
    servers: list[Server]

    def pids(self) -> list[int]:
        return [server.process.pid for server in self.servers]


@contextmanager
def server(name: str, *arguments: str, directory: Path, env: Mapping[str, str]) -> Iterator[Server]:
    log = directory / f"{name}.log"
    process = spawn([_SPARK_CLASS, *arguments], output=log, cwd=directory, env=env)
    try:
        yield Server(process, log)
    finally:
        stop(process, 20)


@contextmanager
def standalone(
    directory: Path, env: Mapping[str, str], *, hosts: Sequence[str] = ("127.0.0.1",) * 2
) -> Iterator[Spark]:
    """A master, and a worker of one core on each of the hosts."""
    ports = ("--port", "0", "--webui-port", "0")
    with ExitStack() as running:
        master = running.enter_context(
            server("master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1",
                   *ports, directory=directory, env=env)
        )  # fmt: skip
        url = master.told(r"Starting Spark master at (spark://\S+)")
        made = Spark(url, [master])
        for number, host in enumerate(hosts):
            size = ("--cores", "1", "--memory", "1g")
            work = ("--work-dir", str(directory / f"work-{number}"))
            made.servers.append(
                running.enter_context(
                    server(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", "--host",
                           host, *ports, *size, *work, url, directory=directory, env=env)
                )
            )  # fmt: skip
        for worker in made.servers[1:]:
            worker.told(r"(Successfully registered with master)")
        yield made


@contextmanager
def connect_server(directory: Path, env: Mapping[str, str]) -> Iterator[Spark]:
    """A Spark Connect server with two cores; its URL is for ``SparkSession.builder.remote``."""
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    arguments = ("org.apache.spark.deploy.SparkSubmit", "--master", "local[2]", *conf, "--class",
                 _CONNECT, "spark-internal")  # fmt: skip
    roomy = {**env, "SPARK_DAEMON_MEMORY": "768m"}  # this "daemon" is a driver, too
    with server("connect", *arguments, directory=directory, env=roomy) as connect:
        port = connect.told(r"Spark Connect server started at: \S*:(\d+)")
        yield Spark(f"sc://127.0.0.1:{port}", [connect])


def submit(
    spark: Spark, program: Path, *arguments: str | Path, directory: Path, env: Mapping[str, str]
) -> str:
    """Runs a program on a cluster with spark-submit until it ends well; returns what it printed."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
    }
    conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    conf += ["--conf", jvm.executors(os.environ)]
    log = directory / f"{program.stem}.log"
    process = spawn(
        [_SPARK_SUBMIT, "--master", spark.url, *conf, program, *arguments],
        output=log, cwd=directory, env=env,
    )  # fmt: skip
    try:
        assert process.wait(_SUBMIT_S) == 0, log.read_text()[-5000:]
    finally:
        stop(process, 20)
    return log.read_text()
