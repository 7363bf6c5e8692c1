"""A lease on what an ephemeral node stands for: the time for which that is certain without asking
ZooKeeper again. Brokers have one on their ids, consumers that share a group one on their part.

A process that was stopped, or a machine that slept, does not notice. When it goes on, its session
may have expired, and another broker may have its id and its partitions. So the broker asks
ZooKeeper several times within each session timeout if the id is still its own. From the moment of
a question that was answered with yes, the id is certain for one session timeout: ZooKeeper heard
of us then, and expires no session earlier. The time is counted by a clock that also runs while the
machine sleeps. After it, appends wait for the next answer, as does what a consumer hands out.

A ZooKeeper that is away is something else: partitions go on being served without it. It counts as
away when it has left questions unanswered for half of a timeout while we were awake to hear; that
is before the lease ends, so nobody waits. After an interruption of our own it is given longer,
because then the silence may be ours. "Away" holds for a second or so and is said again as long as
it lasts, and it ends at once when ZooKeeper is heard of.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from spark_logbus.clock import elapsed
from spark_logbus.errors import BrokerShuttingDownError, CoordinationError, LogbusError
from spark_logbus.threads import Periodic
from spark_logbus.zookeeper.states import SessionState

logger = logging.getLogger(__name__)

# Kept well below what ZooKeeper grants at most by default (20 ticks, 40 s), because a lease that is
# shorter than the session is merely asked for more often.
_LONGEST_S = 20.0
_LOOKS = 5  # in one lease
_QUICK_S = 0.5  # between looks at a ZooKeeper that is away
_NOT_YET_S = 0.1  # between looks while our registration is being renewed
_INTERRUPTED = 3  # looks of the usual length; one that takes longer did not run all the time

# Asks ZooKeeper within so many seconds: true if the id is ours now, false if it is not (yet).
# Raises CoordinationError without an answer.
Ask = Callable[[float], bool]


class Lease:
    """The time for which a node is certainly ours. Thread-safe; asks on a thread of its own.

    ``current`` costs well below a microsecond, so it is asked for each append.
    """

    def __init__(
        self,
        *,
        timeout_ms: int,
        ask: Ask,
        description: str = "the broker's id",
        waits: str = "appends wait",
        elapsed_s: Callable[[], float] = elapsed,
    ) -> None:
        self._description = description
        self._waits = waits
        self._last_for(timeout_ms)
        self._ask = ask
        self._elapsed = elapsed_s
        self._until = 0.0
        self._lock = threading.Lock()
        self._waiting: dict[Callable[[], None], None] = {}
        self._refusal: LogbusError | None = None
        self._news = 0  # counts what happened to the session
        # Of the asking thread:
        self._silent_s = 0.0
        self._patience_s = self._long_patience_s
        self._away = False
        self._looked = elapsed_s()
        self._thread = Periodic(
            "lease",
            self._look,
            pause_s=self._look_s,
            first_pause_s=0.0,
            failure=f"Asking ZooKeeper for {description} failed.",
        )

    def _last_for(self, timeout_ms: int) -> None:
        self._length_s = min(timeout_ms / 1000, _LONGEST_S)
        self._look_s = self._length_s / _LOOKS
        self._quick_s = min(self._look_s, _QUICK_S)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask no more. What is certain stays so for its time; nobody waits any longer."""
        with self._lock:
            self._thread.end()
            self._refusal = self._refusal or BrokerShuttingDownError(
                "The broker is shutting down and asks ZooKeeper for its id no more."
            )
        self._notify_waiting()

    def join(self) -> None:
        """Wait for the asking thread to end, after ``stop`` and the end of the session."""
        self._thread.join()

    # -- for whoever appends --------------------------------------------------------------

    def current(self) -> bool:
        """True while appends may be taken and acknowledged without asking."""
        return self._elapsed() < self._until

    @property
    def until(self) -> float:
        """Time at which the lease ends, by ``clock.elapsed``, unless it is extended or something
        happens to the session before."""
        return self._until

    @property
    def refusal(self) -> LogbusError | None:
        """The reason why there is no lease to wait for, if so: another broker has the id."""
        return self._refusal

    def when_decided(self, f: Callable[[], None]) -> None:
        """Call ``f`` once, when the lease is current again, or is lost; at once if it is so now.
        ``f`` must not block. The same ``f`` is kept once."""
        with self._lock:
            decided = self.current() or self._refusal is not None
            if not decided:
                # Not when it was ended because ZooKeeper was heard: an answer is on its way then.
                first = not self._waiting and self._until > 0
                self._waiting[f] = None
                self._thread.wake()
        if decided:
            f()
        elif first:
            logger.warning(
                "ZooKeeper was last heard of longer ago than the session lasts; %s until it says "
                "whether %s is still ours.",
                self._waits,
                self._description,
            )

    # -- for whoever learns of the registration ---------------------------------------------

    def end(self, refusal: LogbusError) -> None:
        """End the lease: another broker has the id."""
        with self._lock:
            self._refusal = refusal
            self._until = 0.0
            self._news += 1
        self._notify_waiting()

    def begin(self) -> None:
        """The id was registered, again perhaps; ZooKeeper is asked for it at once."""
        with self._lock:
            if not self._thread.stopping.is_set():
                self._refusal = None
            self._thread.wake()

    def session_is(self, state: SessionState, granted_ms: int) -> None:
        """A hook of the session's, on kazoo's thread: ZooKeeper was heard of, or is lost.

        ``granted_ms`` is the session timeout that it has granted. A lease that was longer than
        that would outlast the session.
        """
        with self._lock:
            self._news += 1
            self._last_for(granted_ms)
            self._until = min(self._until, self._elapsed() + self._length_s)
            if state is SessionState.LOST or self._away:
                self._until = 0.0
                self._away = False
            self._thread.wake()

    # -- asking ---------------------------------------------------------------------------

    @property
    def _long_patience_s(self) -> float:
        # kazoo takes two thirds of a timeout to find that a connection is dead, then reconnects.
        return 1.5 * self._length_s

    def _look(self) -> float:
        """Ask once, and draw the conclusions; returns the seconds to pause."""
        with self._lock:
            news = self._news
            limit_s = self._quick_s if self._away else self._look_s
        began = self._elapsed()
        answer: bool | None = None
        try:
            answer = self._ask(limit_s)
        except CoordinationError as failure:
            logger.debug("ZooKeeper was not heard of: %s", failure)
        except Exception:
            logger.exception("Asking ZooKeeper for %s failed.", self._description)
        now = self._elapsed()
        too_long_s = _INTERRUPTED * self._look_s
        if began - self._looked > too_long_s or now - began > too_long_s:
            self._silent_s, self._patience_s = 0.0, self._long_patience_s
        silent_s = min(now - self._looked, 2 * self._look_s)
        self._looked = now
        with self._lock:
            if news != self._news:
                self._silent_s = 0.0  # what was asked of an earlier session says nothing now
                return 0.0
            if answer is None:
                pause_s = max(0.0, limit_s - (now - began))
                self._unanswered(now, silent_s)
            else:
                pause_s = self._look_s if answer else _NOT_YET_S
                self._answered(began, ours=answer)
            decided = self.current()
        if decided:
            self._notify_waiting()
        return pause_s

    def _answered(self, asked: float, *, ours: bool) -> None:
        self._silent_s, self._patience_s = 0.0, self._length_s / 2
        self._away = False
        if ours and self._refusal is None:
            self._until = asked + self._length_s

    def _unanswered(self, now: float, silent_s: float) -> None:
        self._silent_s += silent_s
        if self._silent_s >= self._patience_s and self._refusal is None:
            self._away = True
            self._until = max(self._until, now + _INTERRUPTED * self._quick_s)

    def _notify_waiting(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for f in waiting:
            f()
