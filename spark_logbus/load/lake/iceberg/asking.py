"""Errors of the library, the catalogue and the storage, in words that a person can use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import unquote

from pyiceberg.utils.config import Config

from spark_logbus.errors import ConfigError, LogbusError
from spark_logbus.load.errors import WarehouseError
from spark_logbus.load.lake.table import VersionConflictError
from spark_logbus.load.tables import IcebergTable

_SECRETS: Final = ("secret", "token", "credential", "password", "key", "auth", "header")


@contextmanager
def asking(what: str, table: IcebergTable) -> Iterator[None]:
    """Errors of the library, the catalogue and the storage, as one readable WarehouseError."""
    try:
        yield
    except LogbusError:
        raise
    # The library has no root for its errors, and lets through those of what is below it.
    except Exception as error:
        if "libhdfs" in str(error):
            raise ConfigError(
                f"Cannot {what}: its files are in HDFS, which pyarrow reaches by Hadoop's library "
                "libhdfs, and that is not here. Set ARROW_LIBHDFS_DIR and CLASSPATH, or load into "
                "a table on a local disk or in S3."
            ) from error
        raise WarehouseError(f"Cannot {what}: {shown(error, table)}") from error


def shown(error: Exception, table: IcebergTable) -> str:
    """The first line of an error, without what is secret in the catalogue's properties."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    own = Config().get_catalog_config(table.catalog) or {}
    for name, secret in _secrets({**own, **table.properties}):
        text = text.replace(secret, f"<{name}>")
    return text if text.endswith(".") else f"{text}."


def _secrets(properties: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Values that no message may show, each with the name of its property."""
    for name, value in properties.items():
        if isinstance(value, Mapping):
            yield from _secrets(value)
        elif value and any(word in name.lower() for word in _SECRETS):
            yield name, str(value)
        elif "@" in str(value):
            # A password of an address.
            password = str(value).rpartition("@")[0].rpartition(":")[2]
            yield from ((name, each) for each in (password, unquote(password)) if each)


def conflict(name: str) -> VersionConflictError:
    return VersionConflictError(f"Another writer has committed to table {name} meanwhile.")
