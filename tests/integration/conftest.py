"""Fixtures of the integration tests, from the modules that hold them."""

from tests.servers.spark import group, logbus, spark, streams

__all__ = ["group", "logbus", "spark", "streams"]
