"""Servers that are measured in turn with logbus, each where it is at hand.

A module for each, with a context manager that runs a server of it on the loopback interface, in a
temporary directory. It raises ``ServerUnavailableError`` where something lacks that this machine
would have to have; benchmarks say so and go on with logbus alone. Nothing of the product depends on
any of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["POMS", "ServerUnavailableError"]

POMS: Final = Path(__file__).resolve().parent
"""Folder of the poms that name the jars of each server."""


class ServerUnavailableError(Exception):
    """A server is not at hand; it tells the reason and the remedy in full sentences."""
