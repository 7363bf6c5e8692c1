"""The schema registry: subjects, versions and ids, kept in ZooKeeper. See docs/schemas.md."""

from spark_logbus.schemas.registry.administration import SchemaAdministration
from spark_logbus.schemas.registry.registry import RegisteredSchema, SchemaRegistry

__all__ = ["RegisteredSchema", "SchemaAdministration", "SchemaRegistry"]
