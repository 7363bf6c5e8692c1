"""Public names of a package, each imported when it is first asked for.

A package that lists its public names in ``__init__`` would import all of its modules for any one
of them. Spark starts a Python process for each run of a stream, and the stream waits for what that
imports: where a package serves it too, its ``__init__`` hands names out through ``__getattr__``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of ``package``, whose ``modules`` have the names that their text lists,
    with spaces between them. AttributeError for any other name, as from every module."""
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def resolve(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)  # asked for once
        return value

    return resolve
