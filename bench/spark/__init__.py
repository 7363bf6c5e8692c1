"""Batch reads and writes of Spark, in turn with Spark's Kafka connector on a Kafka broker."""

from __future__ import annotations

from bench.spark.program import main

__all__ = ["main"]
