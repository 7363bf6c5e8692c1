"""The names of ``pyarrow.compute``, each looked up when it is first asked for.

That module makes a Python function for each of Arrow's, which takes 25 to 50 ms of each of Spark's
Python processes, and the first micro-batch of a stream waits for it. The few names below are
compiled, and come from where it has them itself; most reads and writes need no others.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

_COMPILED: Final = frozenset({"TakeOptions", "call_function", "get_function"})


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # of modules, which importing asks for
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = _found(name)
    globals()[name] = value  # asked for once
    return value


def _found(name: str) -> Any:
    if name in _COMPILED:
        try:
            return getattr(import_module("pyarrow._compute"), name)
        except (ImportError, AttributeError):
            pass  # a pyarrow that keeps it elsewhere
    return getattr(import_module("pyarrow.compute"), name)
