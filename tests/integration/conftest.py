"""Fixtures of the integration tests, from the modules that hold them."""

from tests.integration.spark_fixtures import logbus, spark, streams

__all__ = ["logbus", "spark", "streams"]
