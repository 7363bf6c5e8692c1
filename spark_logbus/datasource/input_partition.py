"""Input partitions: what a task is told to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from pyspark.sql.datasource import InputPartition

from spark_logbus.client import Bootstrap
from spark_logbus.client.schemas.topic import ValueSchemas
from spark_logbus.model import OffsetRange

#: Of topics that have none.
NO_SCHEMAS: Final[Mapping[str, ValueSchemas]] = MappingProxyType({})


@dataclass(frozen=True)
class RangesPartition(InputPartition):
    """An input partition: ranges, and whom to ask for them. Picklable."""

    bootstrap: Bootstrap
    ranges: tuple[OffsetRange, ...]

    topic_ids: Mapping[str, str]
    """Of the topics that were planned: later ones of the same name are not read in their place."""

    schemas: Mapping[str, ValueSchemas] = field(default_factory=dict)
    """Of those that have one."""

    size_bytes: int = 0
    """Of the ranges in the log, about; 0 where nobody has asked."""

    rack: str | None = None
    """Rack of the task, if the options say it."""
