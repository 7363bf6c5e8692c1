"""How costs grow with partitions, readers, the size of a log and the number of brokers."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    # Imported here: the client processes import this package too, and need none of it.
    from bench.scaling import program

    program.main()
