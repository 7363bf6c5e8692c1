"""Layouts of Delta tables: the partition columns that they ask for, and the other way round (pure).

A table that loads made tells its layout in a property. One that was there before has partition
columns alone, and the options of a load must give just these.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from spark_logbus.errors import ConfigError
from spark_logbus.load.errors import WarehouseError
from spark_logbus.load.lake.table import LAYOUT
from spark_logbus.load.layout import (
    FileFormat,
    Layout,
    LayoutChangedError,
    LayoutChoice,
    Period,
    settle,
)


def layout_of(
    told: str | None, columns: Sequence[str], choice: LayoutChoice, *, where: str
) -> Layout:
    """Layout of a table with these partition columns, whose property is ``told``.

    Raises LayoutChangedError where ``choice`` asks for another, ConfigError where it is none of
    Delta's, and WarehouseError for a property that no load has written.
    """
    layout = settle(_kept(told, where), choice, where=where)
    check_parquet(layout)
    if {*layout.partition_columns} != {*columns}:
        raise LayoutChangedError(
            f"Table {where} is partitioned by {_listed(columns)}, and this load by "
            f"{_listed(layout.partition_columns)}. Nothing was written. Give "
            f"{options_for(columns)}, or load into another table."
        )
    return layout


def _kept(told: str | None, where: str) -> Layout | None:
    try:
        return None if told is None else Layout.from_json(json.loads(told))
    except (KeyError, TypeError, ValueError) as error:
        raise WarehouseError(
            f"Property {LAYOUT} of the table {where} is {told!r}, which no load has written. Unset "
            "it, and give --partition-by and --partition-columns."
        ) from error


def check_parquet(layout: Layout) -> None:
    """Raises ConfigError for files of another format, which Delta does not have."""
    if layout.format is not FileFormat.PARQUET:
        raise ConfigError(
            f"--format is {layout.format.value}; files of Delta tables are Parquet. Leave it out."
        )


def options_for(columns: Sequence[str]) -> str:
    """The options that ask for these partition columns."""
    found = []
    for period in Period:
        for name in Layout(period=period).period_columns:
            prefixes = [each[: -len(name)] for each in columns if each.endswith(name)]
            for prefix in prefixes:
                layout = Layout(period=period, prefix=prefix)
                if {*layout.period_columns} <= {*columns}:
                    found.append(layout)
    layout = max(
        found, key=lambda each: len(each.period_columns), default=Layout(period=Period.NONE)
    )
    others = [each for each in columns if each not in layout.period_columns]
    return " ".join(
        [
            f"--partition-by {layout.period.value}",
            *([f"--partition-prefix {layout.prefix}"] if layout.prefix else []),
            *([f"--partition-columns {','.join(others)}"] if others else []),
        ]
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"
