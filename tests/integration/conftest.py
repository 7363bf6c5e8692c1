"""Fixtures of the integration tests, from the modules that hold them."""

from tests.integration.load.loaded_table import database, loaded_table
from tests.servers.command import command, topic
from tests.servers.spark import cluster_directory, group, logbus, spark, streams

__all__ = [
    "cluster_directory", "command", "database", "group", "loaded_table", "logbus", "spark",
    "streams", "topic",
]  # fmt: skip
