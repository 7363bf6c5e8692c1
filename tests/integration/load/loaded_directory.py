"""What lies in a topic's directory of a warehouse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_logbus.load.read import input as load_input
from spark_logbus.load.read.reading import PlannedRead, read


class LoadedDirectory:
    """A view of the directory as it is at the moment."""

    directory: Path

    @property
    def files(self) -> list[str]:
        """Directory of each file that readers see."""
        return sorted(
            str(path.parent.relative_to(self.directory))
            for path in self.directory.rglob("part-*")
            if "_logbus" not in path.parts
        )

    @property
    def commits(self) -> list[Path]:
        return sorted((self.directory / "_logbus" / "loads").glob("*.json"))

    @property
    def staged(self) -> list[Path]:
        return list((self.directory / "_logbus" / "staging").glob("*"))

    @property
    def fenced(self) -> list[Path]:
        return list((self.directory / "_logbus" / "fenced").glob("*"))

    @property
    def left_over(self) -> list[Path]:
        return [*self.staged, *self.fenced]


class KilledError(BaseException):
    """Stands for SIGKILL: nothing of the load runs after it."""


def read_only(patch: pytest.MonkeyPatch, condition: str) -> None:
    """Have readers pass over all records that do not meet ``condition``, without a word."""

    class Partly(PlannedRead):
        @property
        def frame(self) -> Any:
            return super().frame.where(condition)

    def partly(*given: Any, **more: Any) -> PlannedRead:
        planned = read(*given, **more)
        return Partly(*(getattr(planned, name) for name in PlannedRead.__slots__))

    patch.setattr(load_input, "read", partly)
