"""The schema registry's REST service on this machine, as a child process."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from spark_logbus.clock import SystemClock
from spark_logbus.errors import EmbeddedServerError
from spark_logbus.local.processes import spawn, stop

__all__ = ["RegistryProcess"]

_START_DEADLINE_S = 60.0
_STOP_GRACE_S = 10.0
_POLL_S = 0.02
_LOG_LINES_SHOWN = 15


class RegistryProcess:
    """A registry on the loopback interface; dies with this process. It keeps nothing but its port,
    in ``directory``. Use from one thread at a time."""

    def __init__(self, directory: Path, *, zookeeper: str, port: int = 0) -> None:
        """``port`` 0: that of the last run if it is free, else any."""
        self._directory = directory.absolute()
        self._zookeeper = zookeeper
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def url(self) -> str:
        """Known once it is ready."""
        return self._ready_file.read_text("utf-8").strip()

    @property
    def log_file(self) -> Path:
        return self._directory / "registry.out"

    @property
    def _ready_file(self) -> Path:
        return self._directory / "registry.ready"

    def start(self) -> None:
        """Raises EmbeddedServerError, with the end of its log, when it does not come to serve."""
        command = [
            sys.executable, "-m", "spark_logbus.cli", "registry", "--port", str(self._port),
            "--zookeeper", self._zookeeper, "--ready-file", str(self._ready_file),
        ]  # fmt: skip
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError, ValueError):
                command += ["--preferred-port", str(int(self.url.rpartition(":")[2]))]
            self._ready_file.unlink(missing_ok=True)
        except OSError as error:
            raise EmbeddedServerError(
                f"Cannot prepare the registry's directory {self._directory}: {error}."
            ) from error
        self._process = spawn(command, output=self.log_file)
        clock = SystemClock()
        deadline = clock.monotonic() + _START_DEADLINE_S
        while not self._ready_file.exists():
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(timeout=_POLL_S)
                raise EmbeddedServerError(
                    f"The schema registry ended with code {code} instead of serving. "
                    + self._last_words()
                )
            if clock.monotonic() > deadline:
                self.stop()
                raise EmbeddedServerError(
                    f"The schema registry is not ready after {_START_DEADLINE_S:.0f} seconds. "
                    + self._last_words()
                )

    def stop(self) -> None:
        if self._process is not None:
            stop(self._process, _STOP_GRACE_S)

    def _last_words(self) -> str:
        lines = self.log_file.read_text("utf-8", errors="replace").splitlines()
        return "\n".join([f"{self.log_file} ends with:", *lines[-_LOG_LINES_SHOWN:]])
