"""A real ZooKeeper server on this machine, from the jars that PySpark carries.

It serves the loopback interface only. What it keeps in its data directory::

    data/            ZooKeeper's snapshots and transaction log (every write is fsynced)
    port             the port it got when it first started, so that a restart keeps its address
    lock             held by this process and by the server; one of each per directory
    zoo.cfg          written at each start, as is log4j2.properties
    zookeeper.log    the server's log (rolled at 10 MB)
    zookeeper.out    what Java itself prints

The server dies with the process that started it (see ``spark_logbus.local.processes``).

It uses raw sockets to find a free port, and to ask the server's four-letter words whether it serves
(its own client library retries and logs until it does).
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from spark_logbus.clock import SystemClock
from spark_logbus.errors import ConfigError, DataDirectoryLockedError, EmbeddedServerError
from spark_logbus.local.processes import spawn, stop
from spark_logbus.local.zookeeper_command import LOG_FILE, server_command
from spark_logbus.ports import FREE_PORTS, TRIES, random_ports

__all__ = ["EmbeddedZooKeeper"]

_HOST = "127.0.0.1"
_MAXIMUM_PORT = 65_535
_START_DEADLINE_S = 60.0  # takes about a second; a loaded machine and an old log take longer
_STOP_GRACE_S = 10.0
_LOCK_DEADLINE_S = 2.0  # how long a server whose parent was killed may take to vanish
_POLL_S = 0.02
_ANSWER_TIMEOUT_S = 2.0
# ZooKeeper forgets a connection that came before it had loaded its data. A question that meets
# that is asked again soon, though not too soon for a machine on which all takes long.
_FIRST_ANSWER_TIMEOUT_S = 0.1
_ANSWER_SHARE = 0.25  # of the time that the start has taken
_LOG_LINES_SHOWN = 15
_MINIMUM_HEAP_MB = 32


class _PortTakenError(EmbeddedServerError):
    """Another program listens on the port."""


class EmbeddedZooKeeper:
    """A ZooKeeper server in a child process; a context manager.

    ``port`` 0 means the port of the last run in ``data_dir``; at the first, ``preferred_port`` if
    that is given and free, or any free one.
    ``heap_mb`` is the size of its Java heap in MiB.

    Start and stop it from one thread at a time; ``address``, ``pid`` and ``running`` can be
    read from any.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int = 0,
        preferred_port: int | None = None,
        heap_mb: int = 256,
    ) -> None:
        if not 0 <= port <= _MAXIMUM_PORT:
            raise ConfigError(f"The ZooKeeper port is {port}; use 0 (any) to {_MAXIMUM_PORT}.")
        if heap_mb < _MINIMUM_HEAP_MB:
            raise ConfigError(
                f"The ZooKeeper heap is {heap_mb} MiB; use at least {_MINIMUM_HEAP_MB}."
            )
        self._dir = data_dir.absolute()
        self._port = port
        self._preferred_port = preferred_port
        self._heap_mb = heap_mb
        self._process: subprocess.Popen[bytes] | None = None
        self._lock_fd: int | None = None

    @property
    def address(self) -> str:
        """``127.0.0.1:port``; known from the first start on, also while it is stopped."""
        port = self._port or self._remembered_port()
        if not port:
            raise EmbeddedServerError(f"ZooKeeper in {self._dir} has no port yet; start it first.")
        return f"{_HOST}:{port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None or self._process.poll() is not None:
            raise EmbeddedServerError(f"ZooKeeper in {self._dir} is not running; start it first.")
        return self._process.pid

    def start(self) -> None:
        """Start the server and wait until it serves; also again after a crash or a stop.

        Raises ``DataDirectoryLockedError`` when another embedded ZooKeeper uses the directory,
        ``JavaNotFoundError`` without Java, and ``EmbeddedServerError`` with the end of the
        server's log when it does not come up.
        """
        if self.running:
            raise EmbeddedServerError(f"ZooKeeper in {self._dir} runs already at {self.address}.")
        self.stop()  # lets go of what a crashed server left
        try:
            self._dir.mkdir(parents=True, exist_ok=True)
            self._lock_fd = _lock(self._dir / "lock")
            self._start_on_some_port()
        except OSError as error:
            self.stop()
            raise EmbeddedServerError(f"Cannot prepare ZooKeeper's directory: {error}.") from error
        except BaseException:  # also when interrupted: leave neither a server nor a lock behind
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server (SIGTERM, then SIGKILL); does nothing if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            stop(process, _STOP_GRACE_S)
        lock_fd, self._lock_fd = self._lock_fd, None
        if lock_fd is not None:
            os.close(lock_fd)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # -- starting -----------------------------------------------------------------------------

    def _start_on_some_port(self) -> None:
        known = self._port or self._remembered_port()
        if known:
            self._start_on(known)
            return
        taken: _PortTakenError | None = None
        preferred = [] if self._preferred_port is None else [self._preferred_port]
        for port in [*preferred, *random_ports()]:
            try:
                self._start_on(port)
            except _PortTakenError as error:
                taken = error
            else:
                return
        raise EmbeddedServerError(
            f"None of {TRIES} ports from {FREE_PORTS.start} to {FREE_PORTS.stop} is free; "
            "choose one with the option port."
        ) from taken

    def _start_on(self, port: int) -> None:
        if not _is_free(port):
            raise self._port_taken(port)
        command = server_command(self._dir, host=_HOST, port=port, heap_mb=self._heap_mb)
        self._process = spawn(
            command,
            output=self._dir / "zookeeper.out",
            cwd=self._dir,
            env={**os.environ, "LC_ALL": "C.UTF-8"},  # so that Java can open any directory
            # The server holds the lock too: should this process be killed, the directory
            # stays locked until the server is gone as well.
            pass_fds=() if self._lock_fd is None else (self._lock_fd,),
        )
        self._wait_until_it_serves(self._process, port)
        self._remember_port(port)

    def _wait_until_it_serves(self, process: subprocess.Popen[bytes], port: int) -> None:
        clock = SystemClock()
        began = clock.monotonic()
        while (taken_s := clock.monotonic() - began) < _START_DEADLINE_S:
            timeout_s = max(_FIRST_ANSWER_TIMEOUT_S, taken_s * _ANSWER_SHARE)
            if "Mode: " in _ask(port, b"srvr", min(timeout_s, _ANSWER_TIMEOUT_S)):
                # The answer must be that of our server: another one may have taken the port.
                conf = _ask(port, b"conf")
                if f"dataDir={self._dir / 'data'}{os.sep}" in conf:
                    return
                if not self.running:
                    raise self._port_taken(port)
            try:
                code = process.wait(timeout=_POLL_S)
            except subprocess.TimeoutExpired:
                continue
            if not _is_free(port):
                raise self._port_taken(port)
            raise EmbeddedServerError(
                f"ZooKeeper in {self._dir} ended with code {code} instead of serving. "
                + self._last_words()
            )
        raise EmbeddedServerError(
            f"ZooKeeper in {self._dir} does not serve {_HOST}:{port} after "
            f"{_START_DEADLINE_S:.0f} seconds. " + self._last_words()
        )

    def _port_taken(self, port: int) -> _PortTakenError:
        return _PortTakenError(
            f"ZooKeeper in {self._dir} cannot listen on {_HOST}:{port}: another program does. "
            f"Stop that program, or choose another port (the one of the last run stands in "
            f"{self._dir / 'port'})."
        )

    def _last_words(self) -> str:
        lines: list[str] = []
        for name in ("zookeeper.out", LOG_FILE):
            try:
                text = (self._dir / name).read_text("utf-8", errors="replace")
            except FileNotFoundError:
                continue
            lines += text.splitlines()[-_LOG_LINES_SHOWN:]
        return "\n".join(["See zookeeper.log there; it ends with:", *lines])

    # -- the port -----------------------------------------------------------------------------

    def _remembered_port(self) -> int:
        path = self._dir / "port"
        try:
            text = path.read_text("ascii", errors="replace").strip()
        except FileNotFoundError:
            return 0
        if not text.isdecimal() or not 0 < int(text) <= _MAXIMUM_PORT:
            raise EmbeddedServerError(f"{path} holds {text[:20]!r}, which is no port; delete it.")
        return int(text)

    def _remember_port(self, port: int) -> None:
        fresh = self._dir / "port.new"
        fresh.write_text(f"{port}\n", "ascii")
        fresh.replace(self._dir / "port")


def _lock(path: Path) -> int:
    """Take the lock file for this process and, as it inherits the descriptor, its server."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    clock = SystemClock()
    deadline = clock.monotonic() + _LOCK_DEADLINE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if clock.monotonic() < deadline:
                time.sleep(_POLL_S)
                continue
            holder = os.pread(descriptor, 20, 0).decode("ascii", errors="replace").strip()
            os.close(descriptor)
            raise DataDirectoryLockedError(
                f"The directory {path.parent} is in use by the ZooKeeper that process {holder} "
                "started; stop that one, or choose another directory."
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
        return descriptor


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as ZooKeeper does
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
        return True


def _ask(port: int, word: bytes, timeout_s: float = _ANSWER_TIMEOUT_S) -> str:
    """The answer to a four-letter word; empty if there is none (yet)."""
    answer = bytearray()
    try:
        with socket.create_connection((_HOST, port), timeout=timeout_s) as connection:
            connection.sendall(word)
            while data := connection.recv(4096):
                answer += data
    except OSError:
        return ""
    return answer.decode("utf-8", errors="replace")


def free_port(preferred: int) -> int:
    """Returns a port of this machine on which nothing listens: that one, if it can be."""
    for port in [preferred, *random_ports()]:
        if _is_free(port):
            return port
    raise EmbeddedServerError(f"None of {TRIES} ports is free, nor {preferred}.")
