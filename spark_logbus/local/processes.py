"""Child processes that never outlive their parent.

An embedded ZooKeeper or broker must vanish with the process that started it, also when that
process is killed with SIGKILL and can run no clean-up. On Linux the kernel does this
(``PR_SET_PDEATHSIG``), with two traps that this module takes care of:

* The "parent" of that mechanism is the *thread* that forked. A child started from a
  short-lived thread would be killed when the thread ends. All children are therefore forked
  by one thread of this module, which lives as long as the process.
* The setting must be made in the child, after the fork. Running Python between fork and exec
  (``preexec_fn``) can deadlock in a process with threads. Instead the child executes a small
  Python program, which makes the setting, checks that the parent is still there, and
  replaces itself (``exec``) with the real program; the process id stays the same.

Other systems have no such mechanism: there, children end with ``stop`` only.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from spark_logbus.errors import EmbeddedServerError

# Runs in the child with "-I -S": no site packages, nothing of ours. The arguments are the
# death signal, the id of the parent, and the real command.
_LAUNCHER = """\
import os, sys
death_signal, parent, argv = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
if sys.platform == "linux":
    import ctypes
    PR_SET_PDEATHSIG = 1
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
        sys.exit(f"prctl failed: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:  # it died before the setting was made
        sys.exit("The parent process is gone.")
os.execv(argv[0], argv)
"""

_Start = Callable[[], "subprocess.Popen[bytes]"]


def spawn(
    argv: Sequence[str | Path],
    *,
    output: Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    parent_death_signal: signal.Signals = signal.SIGKILL,
) -> subprocess.Popen[bytes]:
    """Start a program that dies with this process; thread-safe.

    ``argv[0]`` is the path of the program. It runs in a session of its own, so that Ctrl-C in
    a terminal reaches only the parent, which then stops its children in the right order.
    Standard output and error are appended to the file ``output``; standard input is empty.
    The descriptors ``pass_fds`` stay open in the child.

    The caller owns the child and ends it with ``stop``. Raises ``EmbeddedServerError`` when
    the program cannot be started.
    """
    program = Path(argv[0])
    if not os.access(program, os.X_OK) or program.is_dir():
        raise EmbeddedServerError(
            f"Cannot start {program}: it is not an executable file; check the installation."
        )
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER]
    command = [*launcher, str(int(parent_death_signal)), str(os.getpid()), *map(str, argv)]

    def start() -> subprocess.Popen[bytes]:
        with output.open("ab") as sink:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=None if env is None else dict(env),
                pass_fds=pass_fds,
                start_new_session=True,
            )

    try:
        return _forker().run(start)
    except OSError as error:
        raise EmbeddedServerError(f"Cannot start {program}: {error}.") from error


def stop(process: subprocess.Popen[bytes], grace_s: float) -> int:
    """End a child: SIGTERM, up to ``grace_s`` seconds for it to go, then SIGKILL.

    Returns its exit code (negative: the signal that ended it). Does nothing to a child that
    is gone already. Signals go to this very child, never to a later owner of its id.
    """
    process.terminate()
    try:
        return process.wait(timeout=grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


class _Forker:
    """The thread that forks all children. ``run`` is thread-safe and waits for the result."""

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[tuple[_Start, Future[subprocess.Popen[bytes]]]] = (
            queue.SimpleQueue()
        )
        # A daemon, so that it outlives the exit handlers, which may want to stop children
        # in an orderly way, and holds up nothing.
        threading.Thread(target=self._serve, name="logbus-forker", daemon=True).start()

    def run(self, start: _Start) -> subprocess.Popen[bytes]:
        result: Future[subprocess.Popen[bytes]] = Future()
        self._requests.put((start, result))
        return result.result()

    def _serve(self) -> None:
        while True:
            start, result = self._requests.get()
            try:
                result.set_result(start())
            except Exception as error:  # noqa: BLE001 - raised again where ``run`` was called
                result.set_exception(error)
            del start, result  # keep no reference to a child while waiting for the next


_lock = threading.Lock()
_current: _Forker | None = None


def _forker() -> _Forker:
    global _current
    with _lock:
        if _current is None:
            _current = _Forker()
        return _current


def _forget_forker() -> None:
    global _lock, _current
    _lock, _current = threading.Lock(), None


# Threads do not survive a fork: a forked copy of this process starts its own forker.
os.register_at_fork(after_in_child=_forget_forker)
