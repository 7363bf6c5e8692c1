"""The schema registry's REST service on this machine, as a child process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from spark_logbus.errors import EmbeddedServerError
from spark_logbus.local.child_server import ChildServer

__all__ = ["RegistryProcess"]

_START_DEADLINE_S = 60.0
_STOP_GRACE_S = 10.0


class RegistryProcess(ChildServer):
    """A registry on the loopback interface; dies with this process. It keeps nothing but its port,
    in ``directory``. Use from one thread at a time."""

    def __init__(
        self, directory: Path, *, zookeeper: str, port: int = 0, options: Sequence[str] = ()
    ) -> None:
        """``port`` 0: that of the last run if it is free, else any. ``options`` are more of
        ``logbus registry``."""
        super().__init__(
            "The schema registry",
            directory.absolute(),
            kind="registry",
            start_deadline_s=_START_DEADLINE_S,
            stop_grace_s=_STOP_GRACE_S,
        )
        self._zookeeper = zookeeper
        self._port = port
        self._options = options

    @property
    def url(self) -> str:
        """Known once it is ready."""
        return self.address

    def _prepare(self) -> list[str]:
        command = [
            sys.executable, "-m", "spark_logbus.cli", "registry", "--port", str(self._port),
            "--zookeeper", self._zookeeper, "--ready-file", str(self._ready_file), *self._options,
        ]  # fmt: skip
        with suppress(EmbeddedServerError, ValueError):
            command += ["--preferred-port", str(int(self.address.rpartition(":")[2]))]
        return command
