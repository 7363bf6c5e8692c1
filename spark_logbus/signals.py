"""Signals that are met in a thread of their own, whatever the main thread does.

Python runs signal handlers in the main thread, when it comes around to them: not while it waits in
a call that the signal did not interrupt. The system may give the signal to another thread, as it
often does when a process goes on after SIGSTOP, and a signal may come just before a call begins to
wait. What the main thread holds meanwhile, such as a lock, is another reason not to act there.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Collection
from typing import Final

_NO_DESCRIPTOR: Final = -1


def call_at(numbers: Collection[signal.Signals], act: Callable[[], None]) -> bool:
    """Call ``act`` at each of these signals, in a daemon thread. Only for the main thread.

    False, and nothing is changed, where another wakeup descriptor is installed. A process that is
    forked later meets them as if this had not been called.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    if before != _NO_DESCRIPTOR:
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)
        return False
    handlers = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        # Python writes to the descriptor only for signals with a handler of its own.
        signal.signal(number, lambda *_: None)

    def forget() -> None:
        """A forked process shares the pipe, and is not what these signals are meant for then."""
        signal.set_wakeup_fd(_NO_DESCRIPTOR)
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def hear() -> None:
        while True:
            if not set(numbers).isdisjoint(os.read(reading, 64)):
                act()

    os.register_at_fork(after_in_child=forget)
    threading.Thread(target=hear, name="logbus-signals", daemon=True).start()
    return True
