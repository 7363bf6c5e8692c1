"""The target of a load: where its records go, and where it stands which of them are in.

A target stages what comes in where nobody sees it, and its commit makes data and offsets visible
together. What is read again of a window goes the same way, and takes the place of what was there.
``run_load`` and ``run_reprocess`` know nothing else of it: how that is one step depends on the
target. Files have a rename (``files``), a database has its transactions (``jdbc``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame

from spark_logbus.audit.warehouse import Loads
from spark_logbus.load.commit import Commit
from spark_logbus.load.plan.window import Window
from spark_logbus.load.plan.window_rows import ExistingRows
from spark_logbus.load.read.input import LoadInput
from spark_logbus.load.steps import StepTimer
from spark_logbus.model import OffsetRange


@dataclass(frozen=True, slots=True)
class StagedLoad:
    """A load that is ready to be committed, and what the report says of it."""

    commit: Commit
    size_bytes: int = 0
    without_event_time: int = 0


@dataclass(frozen=True, slots=True)
class StagedReplacement:
    """A window that is ready to be put in the place of what is there of it, and its records."""

    commit: Commit
    records: int
    dead_letters: int
    without_event_time: int = 0
    size_bytes: int = 0


class PlannedReplacement(Protocol):
    """A window that is planned to be read again; nothing is read yet."""

    @property
    def columns_added(self) -> tuple[str, ...]:
        """Those that the target gets."""
        ...

    @property
    def columns_left_out(self) -> tuple[str, ...]:
        """Those of the target that are not read again."""
        ...

    def stage(self) -> StagedReplacement:
        """Read it, and make sure of it; nobody sees it yet.

        Raises NotInLogError and DataLossError.
        """
        ...


class Target(Protocol):
    """Only for the holder of its lock, which is named by ``path``. All methods raise
    WarehouseError; running the load again is right whatever they raise."""

    @property
    def path(self) -> str:
        """The same for every way to name the target."""
        ...

    @property
    def dead_letters(self) -> str:
        """Where those are, for a person."""
        ...

    def recover(self) -> Commit | None:
        """Take over from all loads before: none of them can commit any more when this returns.

        Finishes a load that was committed and discards those that were not; the last commit.
        """
        ...

    def check_names(self, names: Sequence[str]) -> None:
        """ConfigError where a field of values has a name that the target itself gives."""
        ...

    def stage(self, incoming: LoadInput, last: Commit | None, steps: StepTimer) -> StagedLoad:
        """Bring in what is new after ``last``, and make sure of it; nobody sees it yet."""
        ...

    def rows(self, staged: Commit | None = None) -> DataFrame:
        """The columns ``partition``, ``offset`` and ``timestamp`` of all records that are in, dead
        letters too; or of those that are ``staged``."""
        ...

    def prepare(self, commit: Commit) -> None:
        """All that can be done before the lock is checked for the last time."""
        ...

    def commit(self, commit: Commit) -> None:
        """Data and offsets are in when this returns; SupersededError when another load has taken
        over, and nothing is left of this one then."""
        ...

    def publish(self, commit: Commit) -> None:
        """What is left to do for a load that is committed."""
        ...

    def announce(self, last: Commit) -> None:
        """Tell others, if any are to know, of all loads up to ``last``; also where nothing is new,
        of what an earlier load left untold."""
        ...

    def rewrite(self, last: Commit) -> Commit | None:
        """A commit that changes no records, only how they are stored, ready to be committed; None
        where there is nothing to do."""
        ...

    def loads(self) -> Loads:
        """The offsets that are in."""
        ...

    def find(self, last: Commit, ranges: tuple[OffsetRange, ...]) -> ExistingRows:
        """What is there of ``ranges``."""
        ...

    def plan_replacement(
        self,
        incoming: LoadInput,
        last: Commit,
        window: Window,
        before: ExistingRows,
        steps: StepTimer,
    ) -> PlannedReplacement:
        """Reading the window again, to be put in the place of what is there ``before``.

        Raises ConfigError, and IncompatibleColumnsError where the target does not take its columns.
        """
        ...
