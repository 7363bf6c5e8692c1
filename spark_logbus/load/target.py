"""Interface of a load's target, which keeps the records and the offsets loaded so far.

A target stages what comes in where nobody sees it, and its commit makes data and offsets visible
together. What is read again of a window goes the same way, and takes the place of what was there.
``run_load`` and ``run_reprocess`` know nothing else of it: how that is one step depends on the
target. Files have a rename (``files``), a database has its transactions (``jdbc``).

A further kind of target is a class of these methods in a wing of its own, a type of
``TargetConfig.warehouse`` that names it, and a case of ``run.open_target``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame

from spark_logbus.audit.warehouse import Loads
from spark_logbus.load.commit import Commit
from spark_logbus.load.plan.window import ExistingRows, Window
from spark_logbus.load.read.input import LoadInput
from spark_logbus.load.step_timer import StepTimer
from spark_logbus.model import OffsetRange


@dataclass(frozen=True, slots=True)
class StagedLoad:
    """Records that are staged, of a load or in the place of a window, ready to be committed, and
    the numbers of the report. Immutable."""

    commit: Commit
    records: int
    dead_letters: int
    size_bytes: int = 0
    without_event_time: int = 0


@dataclass(frozen=True, slots=True)
class PlannedReplacement:
    """A window that is planned to be read again; nothing is read yet."""

    columns_added: tuple[str, ...]  # to those of the target
    columns_left_out: tuple[str, ...]  # of those of the target
    #: Reads and stages the window, and checks it. Raises NotInLogError and DataLossError.
    stage: Callable[[], StagedLoad]


@dataclass(frozen=True, slots=True)
class History:
    """Rows of a target as of one moment, for readers that look while loads go on. Immutable."""

    #: The load that the rows end with: they are the records below its ``ends``. None: no load yet.
    last: Commit | None
    #: Records, without dead letters, with the columns that were asked for; None where the target
    #: has none before a first load.
    rows: DataFrame | None
    #: Names of all columns that the target has; none where there are no ``rows``.
    columns: tuple[str, ...]
    #: Columns that a load makes of others, to divide records by.
    made: tuple[str, ...]
    #: Makes of decoded records what readers of the target get of them when they are loaded, with
    #: at least the columns of these names that are decoded or made (None: all). Raises ConfigError,
    #: and IncompatibleColumnsError.
    stored: Callable[[DataFrame, Sequence[str] | None], DataFrame]
    #: Number of a load that is committed and not in the rows yet: it is about to bring them in, or
    #: was killed, and then the next one does.
    coming: int | None = None


class Target(Protocol):
    """A place that loads write to. Only for the holder of its lock, which is named by ``path``; but
    for ``history``, which is for everyone.

    All methods raise WarehouseError; running the load again is right whatever they raise.
    """

    @property
    def path(self) -> str:
        """Name of the target, the same for every way to write it."""
        ...

    @property
    def dead_letters(self) -> str:
        """Place of the dead letters, for a person."""
        ...

    def recover(self) -> Commit | None:
        """Takes over from all loads before: none of them can commit any more when this returns.

        Finishes a load that was committed, discards those that were not, and returns the last
        commit.
        """
        ...

    def check_names(self, names: Sequence[str]) -> None:
        """Raises ConfigError where a field of values has a name that the target itself gives."""
        ...

    def stage(self, load_input: LoadInput, last: Commit | None, steps: StepTimer) -> StagedLoad:
        """Brings in what is new after ``last``, and makes sure of it; nobody sees it yet."""
        ...

    def rows(self, staged: Commit | None = None) -> DataFrame:
        """Reads the columns ``partition``, ``offset`` and ``timestamp`` of all records that are in,
        dead letters too; or of those that are ``staged``."""
        ...

    def prepare(self, commit: Commit) -> None:
        """Does all that can be done before the lock is checked for the last time."""
        ...

    def commit(self, commit: Commit) -> None:
        """Commits: data and offsets are in when this returns. Raises SupersededError when another
        load has taken over, and nothing is left of this one then."""
        ...

    def publish(self, commit: Commit) -> None:
        """Does what is left to do for a load that is committed."""
        ...

    def announce(self, last: Commit) -> None:
        """Tells others, if any are to know, of all loads up to ``last``; also where nothing is new,
        of what an earlier load left untold."""
        ...

    def rewrite(self, last: Commit, *, least: int) -> Commit | None:
        """Stages a commit that changes no records, only how they are stored, of directories with
        ``least`` small files or more; None where there is nothing to do."""
        ...

    def loads(self) -> Loads:
        """Reads the offsets that are in."""
        ...

    def history(self, columns: Sequence[str] | None = None) -> History:
        """Reads ``columns`` (None: all) of the records that are in as of now, and where they end.
        Changes nothing, and needs no lock. Raises ConfigError for a column that is not there."""
        ...

    def find(self, last: Commit, ranges: tuple[OffsetRange, ...]) -> ExistingRows:
        """Counts what is there of ``ranges``."""
        ...

    def plan_replacement(
        self,
        load_input: LoadInput,
        last: Commit,
        window: Window,
        before: ExistingRows,
        steps: StepTimer,
    ) -> PlannedReplacement:
        """Plans to read the window again, to be put in the place of what is there ``before``.

        Raises ConfigError, and IncompatibleColumnsError where the target does not take its columns.
        """
        ...
