"""A table of a lake as the target of a load."""

from __future__ import annotations

from pyspark.sql import SparkSession

from spark_logbus.load.config import TargetConfig
from spark_logbus.load.lake.table import LakeTable
from spark_logbus.load.layout import LayoutChoice


class LakeTarget:
    def __init__(
        self,
        spark: SparkSession,
        table: LakeTable,
        letters: LakeTable,
        config: TargetConfig,
        choice: LayoutChoice,
    ) -> None:
        raise NotImplementedError
