"""A reader that stops itself (SIGSTOP) when its fetches are under way, before it reads.

``reader_program.py address fetches``
"""

from __future__ import annotations

import os
import signal
import sys

from spark_logbus.protocol import Api
from tests.servers.wire import EndedError, Wire, fetch_request


def main() -> None:
    address, fetches = sys.argv[1], int(sys.argv[2])
    with Wire.to(address) as wire:
        for _ in range(fetches):
            wire.send(Api.FETCH, fetch_request("t", 0, 0, max_bytes=64 << 20))
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            say(str(sum(len(wire.receive().payload) for _ in range(fetches))))
        except EndedError:
            say("ended")


def say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
