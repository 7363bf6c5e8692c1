"""A client's process: ``python -m bench.programs.clients.worker <module>``, JSON in and out.

A fresh one for each measurement, which imports, connects and warms up before its clock starts.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from bench.programs.clients.work import Done, Work

_MODULES = {
    "logbus": "bench.programs.clients.logbus_client",
    "librdkafka": "bench.programs.clients.librdkafka",
}
_ROOT = Path(__file__).resolve().parents[3]
_DEADLINE_S = 600.0


def run(work: Work, *, deadline_s: float = _DEADLINE_S) -> Done:
    """Do it in a process of its own."""
    ended = subprocess.run(
        [sys.executable, "-m", "bench.programs.clients.worker", _MODULES[work.system]],
        input=work.to_json(),
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        timeout=deadline_s,
    )
    if ended.returncode != 0:
        raise SystemExit(f"The client of {work.system} ended with code {ended.returncode}.")
    return Done(**json.loads(ended.stdout))


def timed(job: Callable[[], object]) -> tuple[float, float]:
    """Seconds that ``job`` takes, and the processor's seconds of this process."""
    gc.collect()
    started, cpu_started = time.perf_counter(), time.process_time()
    job()
    return time.perf_counter() - started, time.process_time() - cpu_started


def main() -> None:
    work = Work.from_json(sys.stdin.read())
    done: Done = getattr(import_module(sys.argv[1]), work.name)(work)
    print(json.dumps(asdict(done)))


if __name__ == "__main__":
    main()
