"""Fixtures of the integration tests, from the modules that hold them."""

from tests.servers.spark import logbus, spark, streams

__all__ = ["logbus", "spark", "streams"]
