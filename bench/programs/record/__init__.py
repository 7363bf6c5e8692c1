"""Micro benchmarks of record batches: of plain values, and of a schema's columns."""
