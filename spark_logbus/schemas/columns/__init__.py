"""Avro datums as Arrow columns, and back. See docs/avro.md."""
