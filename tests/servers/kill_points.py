"""The test's side of the points at which ``stopping/sitecustomize.py`` stops a process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tests.helpers import process_is_stopped, wait_until


class Writer(Protocol):
    """A process, or several, that come to points."""

    def alive(self) -> bool: ...


class KillPoints:
    """Points of a driver's atomic writes: *staged*, *prepared*, *decided*, *half-published* (in
    one partition), and *published*; of brokers between which a partition moves: *copying*,
    *handing-over*, *handed-over*, *taking* and *taken* (the lead), *setting-aside* and *set-aside*
    (the old log); of brokers with replicas: *electing* and *elected*, *changing-in-sync* and
    *changed-in-sync*. ``directory`` is made."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._directory = directory

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables for processes, whose children inherit them."""
        path = [str(Path(__file__).with_name("stopping")), os.environ.get("PYTHONPATH", "")]
        return {
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "LOGBUS_KILL_POINTS": str(self._directory),
        }

    def arm(self, point: str, topic: str) -> None:
        """Let the next process stand still that comes there with a write into the topic."""
        (self._directory / f"{point}.{topic}").touch()

    @contextmanager
    def slow_flushes(self, pid: int, seconds: float) -> Iterator[None]:
        """Has each flush of a process take so much longer."""
        fresh, told = (self._directory / f"{name}.{pid}" for name in ("slow", "slow-flushes"))
        fresh.write_text(str(seconds))
        fresh.rename(told)
        try:
            yield
        finally:
            told.unlink()

    @contextmanager
    def failing_flushes(self, pid: int) -> Iterator[None]:
        """Has each flush of a process fail, as on a disk that is dying."""
        told = self._directory / f"failing-flushes.{pid}"
        told.touch()
        try:
            yield
        finally:
            told.unlink()

    def wait_for(self, point: str, topic: str, driver: Writer) -> int:
        """The process that has come to the armed point, and stands still there."""

        def stopped() -> int:
            assert driver.alive()
            for path in self._directory.glob(f"{point}.{topic}.*"):
                pid = int(path.name.rpartition(".")[2])
                if process_is_stopped(pid):
                    path.unlink()
                    return pid
            return 0

        what = f"{topic} to be {point}"
        return wait_until(stopped, deadline_s=120, message=what)
