"""A server of logbus's own on this machine, as a child process of this one.

Its command is told a file that it writes when it serves, with its address. What it prints, and so
why it ended, is in a file beside that one.
"""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path

from spark_logbus.clock import SystemClock
from spark_logbus.errors import EmbeddedServerError
from spark_logbus.local.processes import spawn, stop

__all__ = ["ChildServer"]

_POLL_S = 0.02
_LOG_LINES_SHOWN = 15


class ChildServer(ABC):
    """Starts a server, waits until it serves, and ends it; it dies with this process.

    ``title`` begins the sentences of errors. ``<kind>.out`` and ``<kind>.ready`` in ``directory``
    are what it prints and its address. Use from one thread at a time.
    """

    def __init__(
        self,
        title: str,
        directory: Path,
        *,
        kind: str,
        start_deadline_s: float,
        stop_grace_s: float,
    ) -> None:
        self.directory = directory
        self.log_file = directory / f"{kind}.out"
        self._ready_file = directory / f"{kind}.ready"
        self._title = title
        self._start_deadline_s = start_deadline_s
        self._stop_grace_s = stop_grace_s
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def _prepare(self) -> list[str]:
        """Write into ``directory`` what the server needs, and return its command. The address of
        the last run is still known. An OSError is told as a failure to start."""

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def address(self) -> str:
        """Text that the server wrote when it was ready. Raises EmbeddedServerError before."""
        try:
            return self._ready_file.read_text("utf-8").strip()
        except FileNotFoundError as error:
            raise EmbeddedServerError(
                f"{self._title} is not ready, so it has no address yet."
            ) from error

    def launch(self) -> None:
        """Start the process; ``wait_until_ready`` waits for it to serve."""
        if self.running:
            raise EmbeddedServerError(f"{self._title} runs already.")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            command = self._prepare()
            self._ready_file.unlink(missing_ok=True)
        except OSError as error:
            raise EmbeddedServerError(
                f"{self._title} cannot start: preparing {self.directory} failed: {error}."
            ) from error
        self._process = spawn(command, output=self.log_file)

    def wait_until_ready(self) -> None:
        """Raises EmbeddedServerError, with the end of the server's log, if that never comes. One
        that takes too long is stopped."""
        process = self._started()
        clock = SystemClock()
        deadline = clock.monotonic() + self._start_deadline_s
        while not self._ready_file.exists():
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout=_POLL_S)
                raise EmbeddedServerError(
                    f"{self._title} ended with code {code} instead of serving. "
                    + self._last_words()
                )
            if clock.monotonic() > deadline:
                words = self._last_words()
                self.stop()
                raise EmbeddedServerError(
                    f"{self._title} is not ready after {self._start_deadline_s:g} seconds. {words}"
                )

    def start(self) -> None:
        self.launch()
        self.wait_until_ready()

    def ask_to_stop(self) -> None:
        """SIGTERM, without waiting."""
        if self._process is not None:
            self._process.terminate()

    def stop(self) -> None:
        """SIGTERM and wait; SIGKILL for one that does not go."""
        if self._process is not None:
            stop(self._process, self._stop_grace_s)

    def kill(self) -> None:
        """SIGKILL: what a crash of the process does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise EmbeddedServerError(f"{self._title} has not been started.")
        return self._process

    def _last_words(self) -> str:
        lines = self.log_file.read_text("utf-8", errors="replace").splitlines()
        return "\n".join([f"{self.log_file} ends with:", *lines[-_LOG_LINES_SHOWN:]])
