"""What the tests of hostile and unlucky clients share: probes of a broker process, peers."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.protocol import Api, MetadataRequest
from tests.builders.record_batches import record_batch
from tests.helpers import wait_until
from tests.servers.broker import connect, offsets_in
from tests.servers.wire import Wire, append_request, fetch_request, request

ROOT = Path(__file__).parents[2]

MIB = 1 << 20


def works(broker: BrokerProcess, wire: Wire) -> bool:
    """Says whether an append and a fetch go through, on this connection and on a new one."""
    with connect(broker) as fresh:
        for each in (wire, fresh):
            base = each.append("t", 0, record_batch()).results[0].base_offset
            each.fetch("t", 0, base)
            if offsets_in(each.payload)[0] != (base, base + 1):
                return False
    return True


def good_frames() -> list[bytes]:
    data = record_batch(payload=bytes(1000))
    return [
        request(Api.METADATA, MetadataRequest([])),
        request(Api.APPEND, append_request("t", 0, data), data),
        request(Api.FETCH, fetch_request("t", 0, 0)),
    ]


def resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def sockets_of(pid: int) -> int:
    """Counts the sockets that a process has open."""
    count = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            count += entry.readlink().name.startswith("socket:")
        except FileNotFoundError:
            continue
    return count


@contextmanager
def stopped_reader(broker: BrokerProcess, *, fetches: int) -> Iterator[StoppedReader]:
    """A process that asks for all of partition 0 of topic t so often, and is stopped then."""
    program = [sys.executable, "-m", "tests.servers.reader_program"]
    command = [*program, broker.address, str(fetches)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            stat = Path(f"/proc/{process.pid}/stat")
            wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
            yield StoppedReader(process)
        finally:
            process.kill()


class StoppedReader:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def result(self) -> str:
        """Its last word: how many bytes it got, or what ended it."""
        out, _ = self._process.communicate(timeout=60)
        return out.strip()
