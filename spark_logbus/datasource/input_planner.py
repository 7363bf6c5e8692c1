"""Plans what Spark reads of a micro-batch, while Spark records that there will be one.

Between ``latestOffset`` and ``partitions`` Spark writes its offset log, which takes tens of
milliseconds. A thread cuts the input partitions meanwhile, and reads a small micro-batch: Spark
then takes its records from here, and starts no Python worker for them (see ``prefetched_rows``).

A prefetch decides nothing. Where it meets anything but the records, such as a loss, damage or a
broker that does not answer, tasks read the micro-batch, and what they meet counts.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_logbus.client import Admin
from spark_logbus.datasource.input_partition import NO_SCHEMAS, RangesPartition
from spark_logbus.datasource.planning import plan_input_partitions
from spark_logbus.errors import LogbusError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from spark_logbus.client import Bootstrap, Cluster
    from spark_logbus.client.schemas.topic import ValueSchemas
    from spark_logbus.datasource.columns import ColumnChoice
    from spark_logbus.datasource.options import SourceOptions
    from spark_logbus.model import OffsetRange
    from spark_logbus.spark.driver import DriverConnections

logger = logging.getLogger(__name__)

# A broker that takes longer is stopped or far away; tasks wait longer for it.
_PATIENCE_S: Final = 2.0
# What a row takes in the JVM beside its bytes: it is copied there into objects, serialised and read
# again, which is 2 to 3 µs for each, as much as for some hundred bytes.
_ROW_BYTES: Final = 350
# Micro-batches in a row that are left to tasks, at most, after prefetches that took longer.
_MOST_LEFT_TO_TASKS: Final = 64


@dataclass(frozen=True, slots=True)
class MicroBatchInput:
    """Input of one micro-batch: partitions for tasks, or rows."""

    partitions: Sequence[InputPartition]

    rows: list[pa.RecordBatch] | None = None
    """All rows, prefetched; ``partitions`` is one task then, which reads them again should Spark
    lose them. None: tasks read."""


@dataclass(frozen=True, slots=True)
class _Prefetch:
    """``input`` is None for a micro-batch that is left to tasks."""

    ranges: tuple[OffsetRange, ...]
    input: Future[MicroBatchInput] | None
    given_up: threading.Event


class InputPlanner:
    """Plans the input of one micro-batch at a time. Not thread-safe.

    Without ``background`` it prefetches nothing, and plans when it is asked. A prefetch that took
    too long keeps one of its threads until it notices; no other is begun meanwhile.
    """

    def __init__(
        self,
        options: SourceOptions,
        columns: ColumnChoice,
        connections: DriverConnections,
        background: Executor | None,
    ) -> None:
        self._options = options
        self._columns = columns
        self._connections = connections
        self._background = background
        self._prefetch: _Prefetch | None = None
        self._late: Future[MicroBatchInput] | None = None  # given up, and perhaps still reading
        self._slow = 0  # prefetches in a row that took too long
        self._left_to_tasks = 0  # micro-batches to come

    def begin(
        self,
        ranges: Sequence[OffsetRange],
        topic_ids: Mapping[str, str],
        schemas: Mapping[str, ValueSchemas] = NO_SCHEMAS,
    ) -> None:
        """Start to plan, and return at once. What was begun before is given up."""
        self._give_up()
        if self._background is None or not ranges:
            return
        given_up = threading.Event()
        planned = None
        if self._may_prefetch():
            cluster = self._connections.cluster()
            planned = self._background.submit(
                self._with_rows, cluster, tuple(ranges), topic_ids, schemas, given_up
            )
        self._prefetch = _Prefetch(tuple(ranges), planned, given_up)

    def plan(
        self,
        ranges: Sequence[OffsetRange],
        topic_ids: Mapping[str, str],
        schemas: Mapping[str, ValueSchemas] = NO_SCHEMAS,
    ) -> MicroBatchInput:
        """The input of the micro-batch that consists of ``ranges``, begun before or not."""
        if self._prefetch is None or (*ranges,) != self._prefetch.ranges:
            self.begin(ranges, topic_ids, schemas)
        if self._prefetch is not None and self._prefetch.input is not None:
            try:
                planned = self._prefetch.input.result(_PATIENCE_S)
            except FutureTimeoutError:
                self._late = self._prefetch.input
                self._slow += 1
                self._left_to_tasks = min(2 ** (self._slow - 1), _MOST_LEFT_TO_TASKS)
                logger.info(
                    "A prefetch took more than %.0f s; tasks read this micro-batch and the "
                    "next %d.",
                    _PATIENCE_S,
                    self._left_to_tasks,
                )
            except (LogbusError, OSError) as error:
                logger.debug("Tasks read the micro-batch, because a prefetch met %r.", error)
            else:
                self._slow, self._prefetch = 0, None
                return planned
        self._give_up()
        admin, bootstrap = self._connections.admin(), self._connections.bootstrap(_topics(ranges))
        return MicroBatchInput(self._partitions(admin, bootstrap, ranges, topic_ids, schemas))

    def _may_prefetch(self) -> bool:
        if self._late is not None and not self._late.done():
            return False
        if self._left_to_tasks:
            self._left_to_tasks -= 1
            return False
        return True

    def _give_up(self) -> None:
        prefetch, self._prefetch = self._prefetch, None
        if prefetch is not None and prefetch.input is not None:
            prefetch.given_up.set()
            prefetch.input.cancel()

    def _partitions(
        self,
        admin: Admin,
        bootstrap: Bootstrap,
        ranges: Sequence[OffsetRange],
        topic_ids: Mapping[str, str],
        schemas: Mapping[str, ValueSchemas],
    ) -> Sequence[InputPartition]:
        return plan_input_partitions(
            ranges,
            self._options,
            admin,
            bootstrap=bootstrap,
            topic_ids=topic_ids,
            schemas=schemas,
        )

    def _with_rows(
        self,
        cluster: Cluster,
        ranges: Sequence[OffsetRange],
        topic_ids: Mapping[str, str],
        schemas: Mapping[str, ValueSchemas],
        given_up: threading.Event,
    ) -> MicroBatchInput:
        bootstrap = cluster.for_tasks(_topics(ranges), "read")
        planned = self._partitions(Admin(cluster), bootstrap, ranges, topic_ids, schemas)
        match planned:
            case [RangesPartition() as one]:
                return MicroBatchInput(planned, self._small(one, cluster, given_up))
        return MicroBatchInput(planned)  # tasks side by side, because it is large or as options say

    def _small(
        self, partition: RangesPartition, cluster: Cluster, given_up: threading.Event
    ) -> list[pa.RecordBatch] | None:
        """All rows of ``partition``; None if they come to more than may be prefetched."""
        most = self._options.max_prefetch_bytes
        if sum(each.count for each in partition.ranges) * _ROW_BYTES > most:
            return None
        # Imported here, on the thread: a new stream waits for all that the main thread imports.
        from spark_logbus.datasource.task import read_ranges

        rows: list[pa.RecordBatch] = []
        size = 0
        for arrow_batch in read_ranges(partition, cluster, self._columns, fail_on_data_loss=True):
            rows.append(arrow_batch)
            size += arrow_batch.nbytes + arrow_batch.num_rows * _ROW_BYTES
            if size > most or given_up.is_set():
                return None
        return rows


def _topics(ranges: Sequence[OffsetRange]) -> set[str]:
    return {each.topic_partition.topic for each in ranges}
