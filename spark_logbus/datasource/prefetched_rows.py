"""Hands rows that the planner has read to Spark, together with the input partition.

PySpark does so for a ``SimpleDataSourceStreamReader``, through a class of its own that wraps it:
its stream runner looks after each call of ``partitions`` whether the reader is of that class, and
then asks it for the rows (``getCache``). Arrow batches reach the JVM as they are; it keeps them as
a block, which its one task reads. No Python worker starts.

The reader becomes one of that class when it has rows to hand over, and is itself again when they
are asked for: for such a reader Spark does not ask how far the topic reaches, nor for a read limit.

The class is private to PySpark. ``is_available`` looks for all that is used of it.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamReader

logger = logging.getLogger(__name__)

_WRAPPER: Final = "_SimpleStreamReaderWrapper"
_ASKED: Final = "getCache"
_ROWS: Final = "_rows_for_spark"


@cache
def is_available() -> bool:
    """True if the Spark process that this is takes rows so; else one line in the log says not."""
    missing = _missing()
    if missing:
        logger.warning(
            "Small micro-batches are read by tasks, which takes longer: this PySpark %s.", missing
        )
    return not missing


def hand_over(reader: DataSourceStreamReader, rows: list[pa.RecordBatch]) -> None:
    """Have Spark take ``rows`` when the call of ``reader.partitions`` that is under way returns.

    That must return one input partition, from which a task can read the same rows.
    """
    setattr(reader, _ROWS, rows)
    reader.__class__ = _with_rows(type(reader))


@cache
def _with_rows(kind: type[DataSourceStreamReader]) -> type[DataSourceStreamReader]:
    from pyspark.sql import datasource_internal

    def get_cache(reader: Any, start: object, end: object) -> Iterator[pa.RecordBatch]:
        reader.__class__ = kind
        return iter(reader.__dict__.pop(_ROWS))

    bases = (kind, getattr(datasource_internal, _WRAPPER))
    return type(f"{kind.__name__}WithRows", bases, {_ASKED: get_cache})


def _missing() -> str:
    """Tells what of PySpark is not as it is used here; empty if all is."""
    try:
        from pyspark.sql import datasource_internal
    except ImportError as error:
        return f"has no such module: {error}"
    wrapper = getattr(datasource_internal, _WRAPPER, None)
    ask = getattr(wrapper, _ASKED, None)
    if not isinstance(wrapper, type) or ask is None:
        return f"has no {_WRAPPER} with {_ASKED}"
    if list(inspect.signature(ask).parameters) != ["self", "start", "end"]:
        return f"calls {_ASKED} in another way"
    runner = getattr(sys.modules["__main__"], "partitions_func", None)
    if not {_WRAPPER, _ASKED} <= set(getattr(getattr(runner, "__code__", None), "co_names", ())):
        return "does not ask its stream readers for rows"
    return ""
