"""The commits of a Delta table, one by one, as files of its log.

Whoever makes the file of the next number has committed, and no two can make it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_logbus.load.lake.delta.storage import DeltaStorage

DIRECTORY: Final = "_delta_log"

#: Operations after which nothing is in the table that was there before.
_REPLACED: Final = "REPLACE TABLE"
_RESTORED: Final = "RESTORE"


@dataclass(frozen=True, slots=True)
class Restore:
    """A commit that has set the table back. Immutable."""

    #: The version that it was set back to; None where the commit tells a time alone.
    to: int | None


#: The version to which a table is set back that is replaced by an empty one.
NOTHING: Final = -1


@dataclass(frozen=True, slots=True)
class CommitLog:
    """Reads single commits. Raises WarehouseError."""

    storage: DeltaStorage

    def actions(self, version: int) -> list[Mapping[str, Any]] | None:
        """Reads the actions of a commit; None where its file is not there, or no longer."""
        path = self._path(version)
        with self.storage.errors(f"read commit {version} of"):
            try:
                with self.storage.filesystem().open_input_file(path) as file:
                    lines = file.read().splitlines()
            except FileNotFoundError:
                return None
            return [json.loads(line) for line in lines if line.strip()]

    def restore(self, version: int) -> Restore | None:
        """Tells what a commit set the table back to; None for one that did not, or that is cleared
        away."""
        info = next(_commit_infos(self.actions(version) or ()), {})
        operation = str(info.get("operation", "")).upper()
        if _REPLACED in operation:
            return Restore(NOTHING)
        if operation != _RESTORED:
            return None
        told = str(info.get("operationParameters", {}).get("version"))
        return Restore(int(told) if told.isdigit() else None)

    def sync(self, version: int) -> None:
        """Brings a commit to disk, which the library does not do."""
        if not self.storage.is_local:
            return
        for path in (self._path(version), self.storage.path(DIRECTORY)):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _path(self, version: int) -> str:
        return self.storage.path(f"{DIRECTORY}/{version:020}.json")


def _commit_infos(actions: Any) -> Iterator[Mapping[str, Any]]:
    return (action["commitInfo"] for action in actions if "commitInfo" in action)
