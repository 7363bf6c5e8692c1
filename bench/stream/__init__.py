"""Streams of Spark in turn with Kafka's, and with a source that does nothing."""

from __future__ import annotations

from bench.stream.program import main

__all__ = ["main"]
