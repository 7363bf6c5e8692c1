"""What the processes that run Spark's tasks do once."""

from __future__ import annotations

import gc
from functools import cache


@cache
def freeze_what_is_loaded() -> None:
    """Leave everything that this process has loaded so far out of its garbage collections.

    A Python worker of Spark collects its garbage after every task. That walks through all objects
    of PySpark, pandas and pyarrow, which are there to stay: 50 ms or more of a core, as much as
    reading some megabytes takes. What a task makes after this is collected as ever. What is frozen
    is still freed when its last reference goes; only a cycle among these objects stays, and this
    happens once in the life of a process.
    """
    gc.freeze()
