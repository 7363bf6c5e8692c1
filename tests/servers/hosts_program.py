"""A program that cuts a network of its own each way, and fails where the wrong packets come
through. ``hosts_program.py directory``"""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

from spark_logbus.local.processes import spawn, stop
from tests.helpers import wait_until
from tests.servers.hosts import Host, Network

_PORT: Final = 7
#: Writes each datagram that it gets into a file, and returns it.
_ECHO: Final = """\
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here, open(sys.argv[2], "ab", 0) as seen:
    here.bind((sys.argv[1], 7))
    seen.write(b"ready")
    while True:
        data, sender = here.recvfrom(100)
        seen.write(data)
        here.sendto(data, sender)
"""


class Echo:
    """A server on a host, and what it has got."""

    def __init__(self, host: Host, directory: Path) -> None:
        self._host = host
        self._seen = directory / f"seen-{host.number}"
        command = [*host.enter, sys.executable, "-c", _ECHO, host.address, str(self._seen)]
        self.process: subprocess.Popen[bytes] = spawn(command, output=directory / "echo.out")
        wait_until(self._seen.exists)
        wait_until(lambda: self.has(b"ready"))

    def has(self, data: bytes) -> bool:
        return data in self._seen.read_bytes()

    def answers(self, data: bytes, *, within_s: float) -> bool:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
            here.settimeout(within_s)
            here.sendto(data, (self._host.address, _PORT))
            try:
                return here.recv(100) == data
            except TimeoutError:
                return False


def main(directory: Path) -> None:
    with Network(directory) as network:
        first, second = (network.add(number) for number in (11, 12))
        one, other = Echo(first, directory), Echo(second, directory)
        assert one.answers(b"whole", within_s=60)
        network.lose([first], [network.here])
        assert not one.answers(b"unanswered", within_s=0.2)
        wait_until(lambda: one.has(b"unanswered"), message="the way there to be whole")
        assert other.answers(b"other", within_s=60), "nobody else is cut off"
        network.mend()
        network.lose([network.here], [first])
        assert not one.answers(b"lost", within_s=0.2)
        network.mend()
        assert one.answers(b"mended", within_s=60)
        assert not one.has(b"lost")
        network.cut([first, second], [network.here])
        assert not one.answers(b"cut", within_s=0.2)
        assert not other.answers(b"cut", within_s=0.2)
        assert not other.has(b"cut")
        for echo in (one, other):
            stop(echo.process, 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
