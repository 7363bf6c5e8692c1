"""SIGTERM cleans up, whatever the clean-up does, and ends the process."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from spark_logbus.spark import termination
from spark_logbus.spark.termination import CleanUp


class Program:
    """A Python process with pipes to its standard input and output."""

    def __init__(self, source: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def terminate_after(self, line: str) -> None:
        """Send SIGTERM once the program has printed ``line``, its first."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == line
        self._process.send_signal(signal.SIGTERM)

    def write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()

    def ended(self) -> tuple[int, str]:
        """Its exit code, and the rest of what it printed."""
        code = self._process.wait(60)
        assert self._process.stdout is not None
        return code, self._process.stdout.read()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()


PROGRAM = r"""
import os, signal, sys, threading
from spark_logbus.spark import termination
termination._LIMIT_S = {limit_s}
lock = threading.Lock()

def clean_up():
    os.write(1, b"cleaning\n")
    {clean_up}

assert termination.CleanUp(clean_up).at_sigterm()
assert not termination.CleanUp(clean_up).at_sigterm()
lock.acquire()  # what the main thread may hold when the signal comes
# Not print: the signal may come while it holds the lock of standard output.
os.write(1, b"ready\n")
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("clean_up", "limit_s"),
    # The second never ends by itself: its limit is what the test waits for.
    [
        ("pass", 20.0),
        pytest.param("lock.acquire()", 2.0, marks=pytest.mark.long),
        ("raise SystemExit(7)", 20.0),
    ],
)
def test_sigterm_cleans_up_within_a_bound(clean_up: str, limit_s: float) -> None:
    with Program(PROGRAM.format(clean_up=clean_up, limit_s=limit_s)) as program:
        program.terminate_after("ready\n")
        assert program.ended() == (128 + signal.SIGTERM, "cleaning\n")


def test_another_handler_is_left_alone() -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        assert not CleanUp(lambda: None).at_sigterm()
    finally:
        signal.signal(signal.SIGTERM, before)


UNINTERRUPTED = r"""
import os, signal, sys, threading
from spark_logbus.spark import termination

assert termination.CleanUp(lambda: os.write(1, b"cleaning\n")).at_sigterm()
# Another thread gets the signal, so that the read below is not interrupted: as when the signal
# comes just before a read begins.
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.write(1, b"ready\n")
sys.stdin.read()
"""


def test_sigterm_is_met_while_the_main_thread_waits_in_a_call() -> None:
    with Program(UNINTERRUPTED) as program:
        program.terminate_after("ready\n")
        assert program.ended() == (128 + signal.SIGTERM, "cleaning\n")


FORKED = r"""
import os, signal
from spark_logbus.spark import termination

assert termination.CleanUp(lambda: os.write(1, b"cleaning\n")).at_sigterm()
child = os.fork()
if child == 0:
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(7)
_, status = os.waitpid(child, 0)
assert os.WTERMSIG(status) == signal.SIGTERM
os.write(1, b"the parent goes on\n")
"""


def test_sigterm_to_a_forked_process_is_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"the parent goes on\n"), done.stderr


AT_IT = r"""
import os, signal, sys
from spark_logbus.spark import termination
termination._LIMIT_S = {limit_s}

def close():
    os.write(1, b"closing\n")
    {wait}
    os.write(1, b"closed\n")

clean_up = termination.CleanUp(close)
assert clean_up.at_sigterm()
clean_up()
clean_up()
sys.exit(7)
"""


@pytest.mark.parametrize(
    ("wait", "limit_s", "code", "rest"),
    # The second waits for more than it is given, and is ended by its limit.
    [
        ("sys.stdin.readline()", 20.0, 7, "closed\n"),
        pytest.param(
            "for _ in sys.stdin: pass", 2.0, 128 + signal.SIGTERM, "", marks=pytest.mark.long
        ),
    ],
)
def test_a_clean_up_that_is_under_way_is_not_cut_off_by_sigterm(
    wait: str, limit_s: float, code: int, rest: str
) -> None:
    with Program(AT_IT.format(wait=wait, limit_s=limit_s)) as program:
        program.terminate_after("closing\n")
        program.write("go on\n")
        assert program.ended() == (code, rest)


def test_who_comes_second_waits_until_all_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(termination, "_LIMIT_S", 60)
    begun, may_end = threading.Event(), threading.Event()
    order: list[str] = []

    def close() -> None:
        begun.set()
        assert may_end.wait(60)
        order.append("closed")

    def end() -> None:
        clean_up()
        order.append("ended")

    clean_up = CleanUp(close)
    first, second = threading.Thread(target=clean_up), threading.Thread(target=end)
    first.start()
    assert begun.wait(60)
    second.start()
    second.join(0.1)
    assert second.is_alive()
    may_end.set()
    for thread in (first, second):
        thread.join(60)
    assert order == ["closed", "ended"]
