"""Standard output of all programs: each line goes out at once, and a program whose reader has gone
ends quietly.

Python holds back some KiB of what is printed where that is no terminal. The log file of a program
that runs for days, or a script that waits for a line, would have them only when it ends.
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn, TextIO

_GONE: Final = select.POLLERR | select.POLLHUP


def print_by_line() -> None:
    """Let each line that is printed go out when it is complete, into files and pipes too."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # tests put others in their place
            stream.reconfigure(line_buffering=True)


def reader_is_gone(stream: TextIO) -> bool:
    """Tells whether ``stream`` is a pipe or a socket whose other end is closed."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # no file, or closed
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & _GONE for _, events in poll.poll(0))


@contextmanager
def ending_without_reader() -> Iterator[None]:
    """End the block quietly where what it prints has no reader any more, as ``... | head`` does.

    A broken pipe or connection of another kind passes.
    """
    try:
        yield
        sys.stdout.flush()
    except SystemExit as ended:
        if not isinstance(ended.__context__, BrokenPipeError):  # else by Rich, which met it
            raise
    except BrokenPipeError:
        gone = [stream for stream in (sys.stdout, sys.stderr) if reader_is_gone(stream)]
        if not gone:
            raise
        for stream in gone:
            # Python flushes once more at its exit: to nowhere.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def run_program(main: Callable[[], int | None]) -> NoReturn:
    """Run ``main`` and end the process with the exit code that it returns.

    The code is 0 where the reader of standard output has gone.
    """
    print_by_line()
    code: int | None = 0
    with ending_without_reader():
        code = main()
    sys.exit(code)
