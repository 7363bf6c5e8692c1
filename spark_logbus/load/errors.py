"""Errors of loads, and those of Spark and its JVM in words that a person can use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Final

from spark_logbus.errors import ConfigError, Fault, LogbusError

_SQL_ERROR: Final = "PSQLException: "


class WarehouseError(LogbusError):
    """The warehouse directory is not in a state that a load can build on, or not reachable."""

    fault: ClassVar[Fault] = "data"


class UsageError(ConfigError):
    """Options of a job that do not go together, or do not name one target."""


class SupersededError(WarehouseError):
    """Another load took the warehouse over while this one stood still."""


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Errors of Spark and of the JVM under it, as one readable WarehouseError."""
    try:
        yield
    except LogbusError:
        raise
    # py4j has several roots for what comes from the JVM, and PySpark replaces some of them.
    except Exception as error:
        raise WarehouseError(f"Cannot {what}: {reason(error)}") from error


def reason(error: Exception) -> str:
    """The part of an error through the JVM that a person needs: no stack traces.

    An error of ours that was raised in a Python worker comes back inside Spark's text; it says
    more than everything around it.
    """
    java = getattr(error, "java_exception", None)
    text = str(error) if java is None else str(java.toString())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    refused = [line for line in lines if _SQL_ERROR in line]
    if refused:
        # Around it stands the statement, with all its values.
        return refused[-1].rpartition(_SQL_ERROR)[2]
    ours = [line for line in lines if line.startswith("spark_logbus.") and "Error: " in line]
    if ours:
        return ours[-1].partition("Error: ")[2]
    return lines[0] if lines else type(error).__name__
