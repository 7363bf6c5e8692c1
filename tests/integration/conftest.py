"""Fixtures of the integration tests, from the modules that hold them."""

from tests.servers.command import command, topic
from tests.servers.spark import group, logbus, spark, streams

__all__ = ["command", "group", "logbus", "spark", "streams", "topic"]
