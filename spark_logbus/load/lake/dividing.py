"""Partitions of records, worked out by Arrow: for those that Spark does not look at."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_Longs = npt.NDArray[Any]
_HOUR_US: Final = 3_600_000_000
_DAY_US: Final = 24 * _HOUR_US


class Rule(enum.Enum):
    """Way in which a partition's value is made from a record's column."""

    VALUE = "value"
    DATE = "date"
    DAY = "day"  # since 1970, as hours and months are
    HOUR = "hour"
    MONTH = "month"
    HOUR_OF_DAY = "hour of day"


@dataclass(frozen=True, slots=True)
class Divider:
    """Rules by the names of partition columns, each with the column that it is about. Immutable and
    picklable."""

    rules: Mapping[str, tuple[Rule, str]]
    #: The partition column that is null for records without event time, if there is one.
    timed: str | None

    def divided(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Adds the partition columns that are not there yet."""
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        for name, (rule, source) in self.rules.items():
            columns[name] = _RULES[rule](columns[source])
        return pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])


def _moments(unit_us: int) -> Callable[[pa.Array], pa.Array]:
    return lambda column: _of(column, lambda us: us // unit_us)


def _of(column: pa.Array, rule: Callable[[_Longs], _Longs]) -> pa.Array:
    numbers = column.cast(pa.int64()).fill_null(0).to_numpy()
    unknown = column.is_null().to_numpy(zero_copy_only=False)
    return pa.array(rule(numbers).astype(np.int32), pa.int32(), mask=unknown)


def _months(us: _Longs) -> _Longs:
    days = (us // _DAY_US).astype("datetime64[D]")
    return days.astype("datetime64[M]").astype(np.int64)


_RULES: Final[Mapping[Rule, Callable[[pa.Array], pa.Array]]] = {
    Rule.VALUE: lambda column: column,
    Rule.DAY: _moments(_DAY_US),
    Rule.HOUR: _moments(_HOUR_US),
    Rule.MONTH: lambda column: _of(column, _months),
    Rule.DATE: lambda column: _of(column, lambda us: us // _DAY_US).cast(pa.date32()),
    Rule.HOUR_OF_DAY: lambda column: _of(column, lambda us: us // _HOUR_US % 24),
}
