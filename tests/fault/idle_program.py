"""A process that opens connections to a broker's UNIX socket and leaves them idle.

``idle_program.py name count``: says how many it was let in with, and ends when its input does.
"""

from __future__ import annotations

import socket
import sys
from contextlib import ExitStack, suppress

from spark_logbus.errors import LimitExceededError
from tests.servers.wire import EndedError, Wire


def main() -> None:
    name, count = sys.argv[1], int(sys.argv[2])
    admitted = 0
    with ExitStack() as stack:
        for _ in range(count):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            wire = stack.enter_context(Wire(sock))
            sock.connect("\0" + name)
            with suppress(LimitExceededError, EndedError):
                wire.shake_hands()
                admitted += 1
        sys.stdout.write(f"{admitted}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
