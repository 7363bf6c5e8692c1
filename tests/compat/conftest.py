"""Fixtures of the compatibility tests, from the modules that hold them."""

from tests.integration.spark_fixtures import spark

__all__ = ["spark"]
