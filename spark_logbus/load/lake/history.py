"""Rows of a lake's table as of one version, for readers that look while loads go on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pyspark.sql import DataFrame

from spark_logbus.load.chosen_columns import chosen, exact_column
from spark_logbus.load.errors import translated
from spark_logbus.load.lake.reading import rows_of
from spark_logbus.load.lake.table import LAYOUT, LakeTable, LakeVersion
from spark_logbus.load.lake.topic_tables import TopicTables
from spark_logbus.load.layout import Layout, LayoutChangedError, LayoutChoice, Period
from spark_logbus.load.plan.window import below
from spark_logbus.load.tally import TALLIED
from spark_logbus.load.target import History


def read(tables: TopicTables, columns: Sequence[str] | None) -> History:
    """Reads ``columns`` (None: all) of the records that are in as of now, and where they end."""
    version = tables.records.newest()
    if version is None:
        layout = tables.records.layout_of_new(tables.choice)
        stored = partial(_stored, tables.records, layout)
        return History(None, None, (), layout.period_columns, stored)
    layout, offered = _layout_read(version, tables.choice), version.schema.names
    last = tables.last(version)
    names = chosen(offered, columns, where=tables.name)
    needed = [*names, *(name for name in TALLIED if name not in names)]
    with translated(f"read {tables.name}"):
        every = rows_of(tables.spark, version, version.files(), needed)
        rows = every.where(below({} if last is None else last.ends))
    rows, stored = rows.select(*map(exact_column, names)), partial(_stored, version, layout)
    return History(last, rows, tuple(offered), layout.period_columns, stored)


def _layout_read(version: LakeVersion, choice: LayoutChoice) -> Layout:
    """Layout of the records that are in; of none where no load has said it, and the one that loads
    have by default does not fit."""
    try:
        return version.layout(choice)
    except LayoutChangedError:
        if LAYOUT in version.properties:
            raise
        return Layout(period=Period.NONE)


def _stored(
    table: LakeTable | LakeVersion, layout: Layout, frame: DataFrame, wanted: Sequence[str] | None
) -> DataFrame:
    """Records with the columns that say which partition they belong to, where those are wanted."""
    if wanted is not None and {*wanted}.isdisjoint(layout.period_columns):
        return frame
    return table.partitioned(frame, layout)
