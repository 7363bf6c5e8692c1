"""The seam of a table and its topic: the records that are in the table, and where the log goes on.

The table is looked at first. Its rows end at the offsets of a load, and the log is read from there
on, so no record is on both sides and none on neither: a load that commits meanwhile brings records
into the table that this reader takes from the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from spark_logbus.client import Admin, Cluster
from spark_logbus.errors import DataLossError, LogbusError
from spark_logbus.load.commit import Commit
from spark_logbus.load.config import LoadConfig
from spark_logbus.load.errors import WarehouseError
from spark_logbus.load.layout import LayoutChoice
from spark_logbus.load.plan.ranges import LoadSource, plan, source_of
from spark_logbus.load.read.reading import Decoding
from spark_logbus.load.run import open_target
from spark_logbus.load.target import History
from spark_logbus.offsets.snapshot import take_snapshot
from spark_logbus.selection import Topics


@dataclass(frozen=True, slots=True)
class Seam:
    """A table's rows, and the ranges of the log that follow them. Immutable."""

    #: Name of the table, for messages.
    table: str
    history: History
    source: LoadSource
    decoding: Decoding


def find_seam(spark: SparkSession, config: LoadConfig, columns: Sequence[str] | None) -> Seam:
    """Looks at the table, then at the log from its rows' end to where the log ends now.

    Raises DataLossError where the log does not go on from there, as a load does; ConfigError,
    WarehouseError, and what the client raises.
    """
    decoding = Decoding.of(config)
    target = open_target(spark, config, LayoutChoice())
    history = target.history(columns)
    while True:
        try:
            source = _rest_of_log(config, history.last)
            break
        except DataLossError as error:
            # A load may have brought in what retention has deleted since.
            newer = target.history(columns)
            if _ends(newer) == _ends(history):
                raise _lost(error, history, target.path) from error
            history = newer
    decoding = decoding.for_topic(config.topic, has_schema=source.has_schema)
    return Seam(target.path, history, source, decoding)


def _rest_of_log(config: LoadConfig, last: Commit | None) -> LoadSource:
    """The records after ``last``, up to the end of the log. Raises DataLossError also where some of
    these are lost, before which a load would end."""
    topic, another = config.topic, config.another_target
    with Cluster.from_zookeeper(config.zookeeper) as cluster:
        snapshot = take_snapshot(Admin(cluster), Topics((topic,)), missing_ok=False)
    ranges = plan(snapshot, topic, last, allow_gaps=False, another_target=another)
    if any(each.end < snapshot.spans[each.topic_partition].end for each in ranges):
        reached = {each.topic_partition: each.end for each in ranges}
        plan(snapshot, topic, None, allow_gaps=False, another_target=another, start=reached)
    return source_of(snapshot, topic, ranges)


def _lost(error: DataLossError, history: History, table: str) -> LogbusError:
    if history.coming is None:
        return error
    return WarehouseError(
        f"Load {history.coming} of {table} is committed and its files are not all in, and the log "
        f"no longer has what it brings ({error.message}) Wait for that load; if it was killed, run "
        "a load, which finishes it. Nothing is lost."
    )


def _ends(history: History) -> tuple[str, dict[int, int]] | None:
    return None if history.last is None else (history.last.topic_id, history.last.ends)
