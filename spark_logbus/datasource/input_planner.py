"""Plans what Spark reads of a micro-batch, while Spark records that there will be one.

Between ``latestOffset`` and ``partitions`` Spark writes its offset log, which takes tens of
milliseconds. A thread cuts the input partitions meanwhile, and reads a small micro-batch: Spark
then takes its records from here, and starts no Python worker for them (see ``prefetched_rows``).

A prefetch decides nothing. Where it meets anything but the records, such as a loss, damage or a
broker that does not answer, tasks read the micro-batch, and what they meet counts.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_logbus.client import Admin
from spark_logbus.datasource.input_partition import RangesPartition
from spark_logbus.datasource.planning import plan_input_partitions
from spark_logbus.errors import LogbusError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from spark_logbus.client import Bootstrap, Cluster
    from spark_logbus.datasource.columns import ColumnChoice
    from spark_logbus.datasource.options import SourceOptions
    from spark_logbus.model import OffsetRange
    from spark_logbus.spark.driver import DriverConnections

logger = logging.getLogger(__name__)

# A broker that takes longer is stopped or far away; tasks have more patience with it.
_PATIENCE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class MicroBatchInput:
    """What Spark reads of one micro-batch."""

    partitions: list[InputPartition]

    rows: list[pa.RecordBatch] | None = None
    """All rows, prefetched; ``partitions`` is one task then, which reads them again should Spark
    lose them. None: tasks read."""


@dataclass(frozen=True, slots=True)
class _Begun:
    ranges: tuple[OffsetRange, ...]
    topic_ids: Mapping[str, str]
    input: Future[MicroBatchInput]


class InputPlanner:
    """Plans the input of one micro-batch at a time. Not thread-safe.

    Without ``background`` it prefetches nothing, and plans when it is asked.
    """

    def __init__(
        self,
        options: SourceOptions,
        columns: ColumnChoice,
        link: DriverConnections,
        background: Executor | None,
    ) -> None:
        self._options = options
        self._columns = columns
        self._link = link
        self._background = background
        self._begun: _Begun | None = None

    def begin(self, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, str]) -> None:
        """Start to plan, and return at once. What was begun before is given up."""
        if self._begun is not None:
            self._begun.input.cancel()
            self._begun = None
        if self._background is None or not ranges:
            return
        cluster = self._link.cluster()
        planned = self._background.submit(self._with_rows, cluster, tuple(ranges), topic_ids)
        self._begun = _Begun(tuple(ranges), topic_ids, planned)

    def plan(self, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, str]) -> MicroBatchInput:
        """The input of the micro-batch that consists of ``ranges``, begun before or not."""
        if self._begun is None or (*ranges,) != self._begun.ranges:
            self.begin(ranges, topic_ids)
        begun, self._begun = self._begun, None
        if begun is not None:
            try:
                return begun.input.result(_PATIENCE_S)
            except (LogbusError, OSError, TimeoutError, CancelledError) as error:
                begun.input.cancel()
                logger.debug("Tasks read the micro-batch, because a prefetch met %r.", error)
        admin, bootstrap = self._link.admin(), self._link.bootstrap()
        return MicroBatchInput(self._partitions(ranges, topic_ids, admin, bootstrap))

    def _partitions(
        self,
        ranges: Sequence[OffsetRange],
        topic_ids: Mapping[str, str],
        admin: Admin,
        bootstrap: Bootstrap,
    ) -> list[InputPartition]:
        return plan_input_partitions(
            ranges, self._options, admin, bootstrap=bootstrap, topic_ids=topic_ids
        )

    def _with_rows(
        self, cluster: Cluster, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, str]
    ) -> MicroBatchInput:
        planned = self._partitions(ranges, topic_ids, Admin(cluster), cluster.bootstrap)
        match planned:
            case [RangesPartition() as one]:
                return MicroBatchInput(planned, self._small(one, cluster))
        return MicroBatchInput(planned)  # tasks side by side, because it is large or as options say

    def _small(self, partition: RangesPartition, cluster: Cluster) -> list[pa.RecordBatch] | None:
        """All rows of ``partition``; None if they come to more than may be prefetched."""
        # Imported here, on the thread: a new stream waits for all that the main thread imports.
        from spark_logbus.datasource.task import read_ranges

        rows: list[pa.RecordBatch] = []
        size = 0
        for arrow_batch in read_ranges(partition, cluster, self._columns, fail_on_data_loss=True):
            rows.append(arrow_batch)
            size += arrow_batch.nbytes
            if size > self._options.max_prefetch_bytes:
                return None
        return rows
