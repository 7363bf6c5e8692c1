"""The last work of clients when the program ends.

When the main thread has ended, Python waits for the program's other threads, except daemons, and
calls what is registered with ``atexit`` after that. Newer versions of Python start no thread any
more by then, so a client that has to connect first could send nothing. Therefore a thread of this
module, for which Python waits, waits for the others and then has each client finish. What is
handed over still later, by functions of ``atexit``, is finished by a function of ``atexit``.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable
from typing import Final, TypeAlias

from spark_logbus.forks import follow_forks

logger = logging.getLogger(__name__)

Finish: TypeAlias = Callable[[float], bool]

#: The end of a program waits for its clients for so long at most, in seconds. Service managers
#: give a program 10 s or more.
LAST_WORK_S: Final = 5.0
_THREAD: Final = "logbus-exit"


class _Unfinished:
    """The calls with which clients finish."""

    def __init__(self) -> None:
        # Two of them, as those who count come after those who send.
        self.senders: dict[object, Finish] = {}
        self.counters: dict[object, Finish] = {}
        self.is_last_call = False

    def after_fork(self) -> None:
        """Forget the parent's clients."""
        self.senders.clear()
        self.counters.clear()


_unfinished: Final = _Unfinished()
follow_forks(_unfinished)


def add_sender(client: object, finish: Finish) -> None:
    """Have ``finish(timeout_s)`` called when the program ends: it sends what is left, tells what
    it could not send, and is called again unless it returns False. ``client`` is kept until
    ``discard``."""
    _unfinished.senders[client] = finish


def add_counter(client: object, finish: Finish) -> None:
    """Adds a client that reports what others have sent: it is finished after all of those."""
    _unfinished.counters[client] = finish


def discard(client: object) -> None:
    """The client has finished, or whoever made it finishes it."""
    _unfinished.senders.pop(client, None)
    _unfinished.counters.pop(client, None)


def is_last_call() -> bool:
    """True when ``atexit`` has clients finish: the program does nothing more."""
    return _unfinished.is_last_call


def _main_thread_ended() -> None:
    try:
        threading.Thread(target=_finish_after_the_others, name=_THREAD, daemon=False).start()
    except RuntimeError:  # Python 3.12.0 and 3.12.1 start none from here on
        _finish_all()


def _finish_after_the_others() -> None:
    while others := [each for each in threading.enumerate() if _is_waited_for(each)]:
        for each in others:
            each.join()
    _finish_all()


def _is_waited_for(thread: threading.Thread) -> bool:
    return not thread.daemon and thread is not threading.main_thread() and thread.name != _THREAD


def _finish_all() -> None:
    deadline = time.monotonic() + LAST_WORK_S
    for clients in (_unfinished.senders, _unfinished.counters):
        _finish_together(clients, deadline)


def _finish_together(clients: dict[object, Finish], deadline: float) -> None:
    """Finishes each client in a thread of its own where one can be started, so that a client whose
    brokers are away takes no time from the others."""
    threads = []
    for client, finish in list(clients.items()):
        thread = threading.Thread(target=_finish, args=(client, finish, deadline), daemon=True)
        try:
            thread.start()
        except RuntimeError:
            _finish(client, finish, deadline)
        else:
            threads.append(thread)
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()) + 1.0)


def _finish(client: object, finish: Finish, deadline: float) -> None:
    is_over = True
    try:
        is_over = not finish(max(0.0, deadline - time.monotonic()))
    except Exception:
        logger.exception("A client failed at the end of the program.")
    finally:
        if is_over:
            discard(client)


def _finish_at_last() -> None:
    _unfinished.is_last_call = True
    _finish_all()


def _follow_the_main_thread() -> None:
    # Python's own executors are told of its end in this way: nothing public comes early enough.
    register = getattr(threading, "_register_atexit", None)
    if register is None:
        return
    try:
        register(_main_thread_ended)
    except RuntimeError:  # it has ended already, and another thread imports this
        _main_thread_ended()


_follow_the_main_thread()
atexit.register(_finish_at_last)
