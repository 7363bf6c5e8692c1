"""HDFS as servers: a NameNode and DataNodes, each a process of its own that can be killed.

All listen on loopback at ports that they choose, keep what they have in one directory, and die with
the tests. Their jars come from Maven Central, once for each user of the machine.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from bench.servers import ServerUnavailableError
from bench.servers.artifacts import jars_of
from spark_logbus.local.java import java_executable
from spark_logbus.local.processes import spawn, stop
from tests.helpers import wait_until

_NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
_START_S = 120.0
_STOP_S = 20.0
_ANY_PORT = "127.0.0.1:0"

_LOG = """\
status = error
appenders = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c{1}: %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""


@dataclass(frozen=True)
class Hdfs:
    """``url`` is for Hadoop's paths: ``hdfs://127.0.0.1:port``."""

    url: str
    namenode: subprocess.Popen[bytes]
    datanodes: list[subprocess.Popen[bytes]]
    logs: list[Path]
    """Of each DataNode."""

    def receives_files(self, number: int) -> bool:
        """Says whether a client, or another DataNode, has begun to write blocks there."""
        return "Receiving BP-" in self.logs[number].read_text(errors="replace")


@contextmanager
def hdfs(directory: Path, *, datanodes: int = 2) -> Iterator[Hdfs]:
    """Runs HDFS and yields it when all DataNodes have registered. Skips the test if the jars
    cannot be had."""
    try:
        jars = jars_of(Path(__file__).with_suffix(".xml"))
    except ServerUnavailableError as missing:
        pytest.skip(f"HDFS is not at hand: {missing}")
    with ExitStack() as running:
        shared = {"dfs.replication": str(datanodes), "dfs.permissions.enabled": "false"}
        name = _Daemon(directory / "namenode", _NAMENODE, jars)
        name.configure(
            {
                **shared,
                "fs.defaultFS": f"hdfs://{_ANY_PORT}",
                "dfs.namenode.http-address": _ANY_PORT,
                "dfs.namenode.name.dir": str(directory / "namenode" / "data"),
            }
        )
        name.run_once("-format", "-nonInteractive")
        namenode = running.enter_context(name.running())
        port = name.told(r"NameNode RPC up at: .*:(\d+)")
        url = f"hdfs://127.0.0.1:{port}"
        nodes, logs = [], []
        for number in range(datanodes):
            data = _Daemon(directory / f"datanode-{number}", _DATANODE, jars)
            data.configure(
                {
                    **shared,
                    "fs.defaultFS": url,
                    "dfs.datanode.address": _ANY_PORT,
                    "dfs.datanode.http.address": _ANY_PORT,
                    "dfs.datanode.ipc.address": _ANY_PORT,
                    "dfs.datanode.hostname": "127.0.0.1",
                    "dfs.datanode.data.dir": str(directory / f"datanode-{number}" / "data"),
                }
            )
            nodes.append(running.enter_context(data.running()))
            logs.append(data.log)
        name.told(r"(registerDatanode)", times=datanodes)
        yield Hdfs(url, namenode, nodes, logs)


class _Daemon:
    """One JVM with its own configuration, known by what it writes to its log."""

    def __init__(self, directory: Path, main: str, jars: Sequence[Path]) -> None:
        self._directory = directory
        self.log = directory / "daemon.log"
        conf = directory / "conf"
        conf.mkdir(parents=True)
        path = ":".join(map(str, (conf, *jars)))
        self._command: list[str | Path] = [java_executable(), "-Xmx256m", "-cp", path, main]

    def configure(self, settings: Mapping[str, str]) -> None:
        properties = "".join(
            f"<property><name>{name}</name><value>{escape(value)}</value></property>\n"
            for name, value in settings.items()
        )
        for site in ("core-site.xml", "hdfs-site.xml"):
            text = f"<configuration>\n{properties}</configuration>\n"
            (self._directory / "conf" / site).write_text(text)
        (self._directory / "conf" / "log4j2.properties").write_text(_LOG)

    def run_once(self, *arguments: str) -> None:
        done = subprocess.run(
            [*self._command, *arguments],
            capture_output=True, text=True, check=False, timeout=_START_S,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        self._process = spawn(self._command, output=self.log, cwd=self._directory)
        try:
            yield self._process
        finally:
            stop(self._process, _STOP_S)

    def told(self, pattern: str, *, times: int = 1) -> str:
        """Waits until the log has ``pattern`` so often; returns the first match of its group."""

        def look() -> list[str]:
            said = self.log.read_text(errors="replace")
            assert self._process.poll() is None, said[-3000:]
            found = re.findall(pattern, said)
            return found if len(found) >= times else []

        return wait_until(look, deadline_s=_START_S, message=f"{pattern} in {self.log}")[0]
