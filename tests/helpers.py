"""What tests of all kinds share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_POLL_S = 0.01


def wait_until(
    predicate: Callable[[], T],
    *,
    deadline_s: float = 30,
    message: str = "the condition to come true",
) -> T:
    """Call ``predicate`` until its result is true, and return that; fail after ``deadline_s``."""
    pause = threading.Event()  # never set: its wait is the pause between two looks
    deadline = time.monotonic() + deadline_s
    while True:
        result = predicate()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(
                f"Waited {deadline_s} seconds for {message}; the last result was {result!r}."
            )
        pause.wait(_POLL_S)


def process_is_gone(pid: int) -> bool:
    """Whether no such process runs any more; one that only waits to be reaped is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"
