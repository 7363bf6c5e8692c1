"""The commits of a Delta table, one by one, as files of its log.

Whoever makes the file of the next number has committed, and no two can make it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_logbus.load.lake.delta.storage import DeltaStorage

DIRECTORY: Final = "_delta_log"

#: Operations after which nothing is in the table that was there before.
_REPLACED: Final = "REPLACE TABLE"
_RESTORED: Final = "RESTORE"

#: The version to which a table is set back that is replaced by an empty one.
NOTHING: Final = -1


@dataclass(frozen=True, slots=True)
class Restore:
    """A commit that has set the table back. Immutable."""

    #: The version that it was set back to; None where the commit tells a time alone.
    to: int | None


@dataclass(frozen=True, slots=True)
class CommitLog:
    """Reads single commits. Raises WarehouseError."""

    storage: DeltaStorage

    def numbers(self, version: int) -> Mapping[str, int] | None:
        """Reads the application transactions of a commit; None where its file is not there, or no
        longer."""
        actions = self._actions(version, "txn")
        return None if actions is None else {each["appId"]: each["version"] for each in actions}

    def _actions(self, version: int, kind: str) -> list[Mapping[str, Any]] | None:
        """Reads the actions of one kind; None where the file is not there."""
        path = self._path(version)
        with self.storage.errors(f"read commit {version} of"):
            try:
                with self.storage.filesystem().open_input_file(path) as file:
                    lines = file.read().splitlines()
            except FileNotFoundError:
                return None
            # Most lines are of files.
            name = json.dumps(kind).encode()
            found = [json.loads(line) for line in lines if name in line]
            return [action[kind] for action in found if kind in action]

    def restore(self, version: int) -> Restore | None:
        """Tells what a commit set the table back to; None for one that did not, or that is cleared
        away."""
        info, *_ = self._actions(version, "commitInfo") or [{}]
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
