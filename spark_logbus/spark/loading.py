"""Imports without garbage collections, for processes that begin with hundreds of modules."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Leave the collector out of the block.

    What imports make is there to stay, and the collector walks through it again and again, with all
    of PySpark that has come before: a fifth of the time of logbus's own imports.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
