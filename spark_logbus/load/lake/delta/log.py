"""The commits of a Delta table, one by one, as files of its log.

Whoever makes the file of the next number has committed, and no two can make it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from pyarrow import fs as pafs

from spark_logbus.load.lake.delta.storage import DeltaStorage

DIRECTORY: Final = "_delta_log"

#: Operations after which nothing is in the table that was there before.
_REPLACED: Final = "REPLACE TABLE"
_RESTORED: Final = "RESTORE"
_AT_ONCE: Final = 16  # files that are read

#: The version to which a table is set back that is replaced by an empty one.
NOTHING: Final = -1


@dataclass(frozen=True, slots=True)
class Restore:
    """A commit that has set the table back. Immutable."""

    #: The version that it was set back to; None where the commit tells a time alone.
    to: int | None


class CommitLog:
    """Reads single commits, which never change. Raises WarehouseError. Not thread-safe."""

    def __init__(self, storage: DeltaStorage) -> None:
        self._storage = storage
        self._known: dict[tuple[str, int], Restore | None] = {}

    @cached_property
    def _files(self) -> pafs.FileSystem:
        return self._storage.filesystem()

    def numbers(self, version: int) -> Mapping[str, int] | None:
        """Reads the application transactions of a commit; None where its file is not there, or no
        longer."""
        actions = self._actions(version, "txn")
        return None if actions is None else {each["appId"]: each["version"] for each in actions}

    def restores(self, table_id: str, versions: range) -> Mapping[int, Restore]:
        """Looks for commits that set the table back; one that is cleared away is passed over.

        ``table_id`` is that of the log itself: another table may be made in the same place.
        """
        unread = [each for each in versions if (table_id, each) not in self._known]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for version, found in zip(unread, pool.map(self._restore, unread), strict=True):
                self._known[table_id, version] = found
        every = {version: self._known[table_id, version] for version in versions}
        return {version: found for version, found in every.items() if found is not None}

    def _restore(self, version: int) -> Restore | None:
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
        if not self._storage.is_local:
            return
        for path in (self._path(version), self._storage.path(DIRECTORY)):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _actions(self, version: int, kind: str) -> list[Mapping[str, Any]] | None:
        """Reads the actions of one kind; None where the file is not there."""
        with self._storage.errors(f"read commit {version} of"):
            try:
                with self._files.open_input_file(self._path(version)) as file:
                    lines = file.read().splitlines()
            except FileNotFoundError:
                return None
            # Most lines are of files.
            name = json.dumps(kind).encode()
            found = [json.loads(line) for line in lines if name in line]
            return [action[kind] for action in found if kind in action]

    def _path(self, version: int) -> str:
        return self._storage.path(f"{DIRECTORY}/{version:020}.json")
