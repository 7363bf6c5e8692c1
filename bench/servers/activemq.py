"""One ActiveMQ broker ("classic") with its own defaults, which keeps messages in KahaDB."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.servers.artifacts import jars_of
from bench.servers.java_programs import compiled
from bench.servers.starting import HOST, STOP_GRACE_S, free_ports, wait_until_ready
from spark_logbus.local.processes import spawn, stop

_HERE = Path(__file__).resolve().parent
POM: Final = _HERE / "activemq.xml"
_HEAP = ("-Xms1G", "-Xmx1G", "-server")  # as its bin/activemq has at most

_JOURNAL = "db-{number}.log"
_JOURNAL_BYTES = 32 << 20  # KahaDB's default size of a file of its journal
_BLOCK_BYTES = 512  # of st_blocks, on any file system


@dataclass(frozen=True)
class ActiveMq:
    """A running broker."""

    address: str
    directory: Path
    """Of KahaDB."""
    version: str

    def journal_bytes(self) -> int:
        """Sums what its journal has had so far, also in files that are deleted since.

        The newest file has its full length from the beginning, as a hole.
        """
        numbers = [int(path.stem.partition("-")[2]) for path in self.directory.glob("db-*.log")]
        newest = self.directory / _JOURNAL.format(number=max(numbers))
        status = newest.stat()
        filled = min(status.st_size, status.st_blocks * _BLOCK_BYTES)
        return (max(numbers) - 1) * _JOURNAL_BYTES + filled


@contextmanager
def activemq(*, flushed: bool) -> Iterator[ActiveMq]:
    """Runs a fresh broker, gone afterwards.

    With ``flushed``, its default, it syncs its journal before it answers who waits; without, it
    leaves that to the operating system. Raises ServerUnavailableError, and
    EmbeddedServerError if it does not start.
    """
    jars = jars_of(POM)
    with (
        tempfile.TemporaryDirectory(prefix="logbus-bench-activemq-") as name,
        compiled(_HERE / "ActiveMqBroker.java", jars) as program,
    ):
        directory = Path(name)
        (port,) = free_ports(1)
        store = directory / "kahadb"
        output = directory / "activemq.out"
        syncs = "always" if flushed else "never"
        command = [*program.command(*_HEAP), f"{HOST}:{port}", str(store), syncs]
        process = spawn(command, output=output, cwd=directory)
        try:
            wait_until_ready("ActiveMQ", process, port=port, output=output)
            version = next(
                jar.stem.rpartition("-")[2] for jar in jars if "activemq-broker" in jar.name
            )
            yield ActiveMq(f"{HOST}:{port}", store, version)
        finally:
            stop(process, STOP_GRACE_S)
