"""Topics with a schema as columns in Spark, beside ready-made Arrow batches, JSON and Avro."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    # Imported here: the tasks of the ceiling import this package too, and need none of it.
    from bench.typed import program

    program.main()
