"""Columns that a reader chooses by name, of those that a table has."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark_logbus.config import nearest
from spark_logbus.errors import ConfigError


def exact_column(name: str) -> Column:
    """Returns the column of exactly that name, also where it has dots or quotes."""
    quoted = name.replace("`", "``")
    return F.col(f"`{quoted}`")


def chosen(offered: Sequence[str], columns: Sequence[str] | None, *, where: str) -> list[str]:
    """Returns the names of ``columns``; None: all that are offered (pure).

    Raises ConfigError for one that is not there, or is named twice; ``where`` names the table.
    """
    if columns is None:
        return [*offered]
    if isinstance(columns, str) or not columns:
        raise ConfigError(
            f"columns is {columns!r}, expected a list of names; leave it out for all columns."
        )
    for place, name in enumerate(columns):
        if name not in offered:
            close = nearest(name, offered)
            hint = f"did you mean {close}?" if close else f"it has {', '.join(offered)}."
            raise ConfigError(f"columns names {name!r}, which {where} does not have; {hint}")
        if name in columns[:place]:
            raise ConfigError(f"columns names {name} twice; leave one of them out.")
    return [*columns]
