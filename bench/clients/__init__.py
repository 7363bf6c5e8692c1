"""Producers and consumers in turn with librdkafka's, and with Kafka's own in Java."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    # Imported here: the client processes import this package too, and need none of it.
    from bench.clients import program

    program.main()
