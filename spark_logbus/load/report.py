"""Outcome of a load, or of reprocessing, for programs and for a person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from spark_logbus.load.commit import Commit, ranges_to_json
from spark_logbus.load.plan.window import ExistingRows
from spark_logbus.load.target import StagedLoad
from spark_logbus.model import OffsetRange


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """Numbers that loads and reprocessing both tell. Immutable."""

    topic: str
    path: str
    hive_table: str | None = None
    #: Place of the records that did not decode.
    dead_letters_path: str = ""
    commit: Commit | None = None  # None: nothing was committed
    #: Records that were committed, or put in the place of the window.
    records: int = 0
    dead_letters: int = 0
    #: Records whose event time is null.
    without_event_time: int = 0
    #: Size of the new files.
    size_bytes: int = 0
    seconds: float = 0.0
    #: Seconds of each step, in their order.
    steps: Mapping[str, float] = field(default_factory=dict)

    @property
    def nothing_new(self) -> bool:
        """Tells whether no records came in beyond those of earlier loads."""
        return self.commit is None or not self.commit.ranges

    def with_staged(self, staged: StagedLoad) -> Self:
        """Returns the report of what was staged and is committed now."""
        return replace(self, **{each.name: getattr(staged, each.name) for each in fields(staged)})

    def to_json(self) -> dict[str, Any]:
        """Returns the report for programs; numbers are 0 and lists empty where nothing was done."""
        commit = self.commit
        return {
            "topic": self.topic,
            "warehouse": self.path,
            "hive_table": self.hive_table,
            "load": None if commit is None else commit.number,
            "records": self.records,
            "dead_letters": self.dead_letters,
            "without_event_time": self.without_event_time,
            "files": 0 if commit is None else len(commit.files),
            "bytes": self.size_bytes,
            "seconds": round(self.seconds, 3),
            "steps": {step: round(seconds, 3) for step, seconds in self.steps.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded(LoadReport):
    """Outcome of one load; ``commit`` is None when there was none to make. Immutable."""

    #: Small files that were rewritten, and those that have taken their place.
    files_replaced: int = 0
    files_rewritten: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            **LoadReport.to_json(self),
            "nothing_new": self.nothing_new,
            "ranges": [] if self.commit is None else ranges_to_json(self.commit.ranges),
            "files_replaced": self.files_replaced,
            "files_rewritten": self.files_rewritten,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Reprocessed(LoadReport):
    """Outcome of reprocessing; ``commit`` is None where there was nothing to do, or with
    ``dry_run``. Immutable."""

    dry_run: bool
    ranges: tuple[OffsetRange, ...]
    before: ExistingRows = ExistingRows()
    #: Columns that the warehouse gets, and those that are null in the window from now on.
    columns_added: tuple[str, ...] = ()
    columns_left_out: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            **LoadReport.to_json(self),
            "dry_run": self.dry_run,
            "nothing_loaded": not self.ranges,
            "ranges": ranges_to_json(self.ranges),
            "records_before": self.before.records,
            "dead_letters_before": self.before.dead_letters,
            "records_kept": self.before.kept,
            "replaces": list(self.before.names),
            "columns_added": list(self.columns_added),
            "columns_left_out": list(self.columns_left_out),
        }
