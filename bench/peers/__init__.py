"""Other systems that are measured in turn with logbus, each where it is at hand.

A module for each, with a context manager that runs a server of it on the loopback interface, in a
temporary directory. It raises ``PeerUnavailableError`` where something lacks that this machine
would have to have; benchmarks say so and go on with logbus alone. Nothing of the product depends
on any of them.
"""

from __future__ import annotations

__all__ = ["PeerUnavailableError"]


class PeerUnavailableError(Exception):
    """A peer is not at hand; the reason and the remedy in full sentences."""
