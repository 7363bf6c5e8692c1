"""Fixtures of the fault tests, from the modules that hold them."""

from tests.servers.spark import spark

__all__ = ["spark"]
