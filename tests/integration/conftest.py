"""Fixtures of the integration tests, from the modules that hold them."""

from tests.integration.load.loaded_lake import lake
from tests.integration.load.loaded_table import database, loaded_table
from tests.servers.cluster import brokers, cluster, cluster_directory, group, logbus
from tests.servers.command import command, topic
from tests.servers.replicas import processes
from tests.servers.spark import spark, streams

__all__ = [
    "brokers", "cluster", "cluster_directory", "command", "database", "group", "lake",
    "loaded_table", "logbus", "processes", "spark", "streams", "topic",
]  # fmt: skip
