"""Ends of Spark's Python workers without a traceback, where it is Spark that hung up.

Spark closes the connection to a worker when it has read enough of a task's rows (``show``,
``limit``), when the worker has been idle for a minute, and when the session stops. The worker meets
that when it flushes what it has left to say: an idle one tries to report that no task came. Over
TCP that often passes unnoticed; a UNIX socket refuses at once. Spark's daemon, which the worker was
forked from, then prints the BrokenPipeError before it lets the process end, though all that was
asked for has been done. A read or write that failed was reported to Spark before, through the same
connection.

Spark has a daemon for each kind of worker: for finding formats, for planning, for tasks, and more.
Any of them prints it, so this belongs where they all come by.
"""

from __future__ import annotations

import sys
from functools import cache
from types import ModuleType
from typing import Any


@cache
def end_quietly_when_dropped() -> None:
    """Let this process, if it is a worker of Spark's daemon, end without a traceback when Spark
    hangs up on it. Does nothing in other processes, nor with a daemon that it does not know."""
    daemon = sys.modules.get("__main__")
    spec = getattr(daemon, "__spec__", None)
    if daemon is not None and spec is not None and spec.name == "pyspark.daemon":
        silence_hang_ups(daemon)


def silence_hang_ups(daemon: ModuleType) -> None:
    """Have ``daemon``, a module that calls ``traceback.print_exc``, pass over errors of a
    connection that it was writing to itself. All others it prints as before."""
    names: dict[str, Any] = vars(daemon)
    if "traceback" in names:
        names["traceback"] = _Tracebacks(names["traceback"], names)


class _Tracebacks:
    """The module ``traceback``, as one module sees it."""

    def __init__(self, original: Any, names: dict[str, Any]) -> None:
        self._original = original
        self._names = names

    def print_exc(self) -> None:
        error = sys.exception()
        if error is None or not (self._is_own_hang_up(error) and _hides_nothing(error)):
            self._original.print_exc()

    def _is_own_hang_up(self, error: BaseException) -> bool:
        """True if it was raised in the module's own code, not in something that it called."""
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        own = frame is not None and frame.tb_frame.f_globals is self._names
        return own and isinstance(error, BrokenPipeError | ConnectionResetError)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _hides_nothing(error: BaseException) -> bool:
    """True if no other error was on its way when ``error`` came, but for more of the hang-up: the
    module flushes in a ``finally``."""
    before = error.__context__
    while before is not None:
        if not isinstance(before, BrokenPipeError | ConnectionResetError | EOFError):
            return False
        before = before.__context__
    return True
