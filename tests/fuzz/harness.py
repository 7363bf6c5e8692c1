"""Runs a fuzzer for some seconds, in a process of its own with little memory.

Every input follows from its number alone, so a finding is run again by that number::

    python -m tests.fuzz.record_batches 0 --only 4711

The process ends by itself, with a traceback, at an input that takes too long, and the number of
the last input is left in a file for when native code ends it.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

MEMORY_LIMIT_BYTES = 2 << 30
SLOWEST_INPUT_S = 60.0
FEWEST_INPUTS = 20  # on a machine that does much else

# Gives one input to what is tested, and says in a word what became of it.
Try = Callable[[random.Random], str]


def main(attempt: Try) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", type=float)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--only", type=int, help="run this input alone")
    parser.add_argument("--last-file", help="where to note the number of the input")
    arguments = parser.parse_args()
    if arguments.only is not None:
        print(attempt(random.Random(arguments.only)))  # noqa: T201
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    last = os.open(arguments.last_file or os.devnull, os.O_WRONLY | os.O_CREAT)
    outcomes: Counter[str] = Counter()
    number = arguments.first
    started = time.monotonic()
    while time.monotonic() - started < arguments.seconds or outcomes.total() < FEWEST_INPUTS:
        os.pwrite(last, b"%020d\n" % number, 0)
        faulthandler.dump_traceback_later(SLOWEST_INPUT_S, exit=True)
        outcomes[attempt(random.Random(number))] += 1
        number += 1
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps({**outcomes, "peak_mib": peak_mib()}))  # noqa: T201


def peak_mib() -> int:
    """Peak memory of this program alone: ru_maxrss would start from what its parent had."""
    status = Path("/proc/self/status").read_text("ascii")
    return int(status.split("VmHWM:")[1].split()[0]) >> 10


def fuzz(module: str, *, seconds: float, first: int) -> dict[str, int]:
    """Run the fuzzer ``module`` as a child; its outcomes. Fails with the input that was found."""
    with tempfile.NamedTemporaryFile("r") as last:
        command = [sys.executable, "-X", "faulthandler", "-m", module, str(seconds)]
        command += ["--first", str(first), "--last-file", last.name]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds + 120, check=False
        )
        number = last.read().strip()
    assert done.returncode == 0, (
        f"Run it again with: python -m {module} 0 --only {int(number)}\n{done.stderr[-4000:]}"
    )
    outcomes: dict[str, int] = json.loads(done.stdout)
    return outcomes
