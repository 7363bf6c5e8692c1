"""A client's process: it gets its work as JSON, and answers likewise.

A fresh one for each measurement, which imports, connects and warms up before its clock starts.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module

from bench.kit.children import Child
from bench.programs.clients.work import Done, Work

_MODULES = {
    "logbus": "bench.programs.clients.logbus_client",
    "librdkafka": "bench.programs.clients.librdkafka",
}
_DEADLINE_S = 600.0


def run(work: Work, *, deadline_s: float = _DEADLINE_S) -> Done:
    """Does the work in a process of its own."""
    with Child("bench.programs.clients.worker", asdict(work)) as client:
        return Done(**client.answer(deadline_s=deadline_s))


def timed(job: Callable[[], object]) -> tuple[float, float]:
    """Seconds that ``job`` takes, and the processor's seconds of this process."""
    gc.collect()
    started, cpu_started = time.perf_counter(), time.process_time()
    job()
    return time.perf_counter() - started, time.process_time() - cpu_started


def main() -> None:
    work = Work(**json.loads(sys.argv[1]))
    done: Done = getattr(import_module(_MODULES[work.system]), work.name)(work)
    print(json.dumps(asdict(done)))


if __name__ == "__main__":
    main()
