"""Time for which a partition is not served when its leader is killed, or stopped in order.

A producer sends one record after the other, each of which all replicas in sync have when it is
acknowledged. What counts is the longest pause between two acknowledgements. Where there is one
replica, the broker is started again at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from bench.kit.harness import console
from bench.kit.result import LOGBUS, Metrics, Rounds
from bench.kit.rounds import Contender, in_turn
from bench.programs.peers.contenders import KAFKA
from bench.programs.peers.measuring import KILLED, STOPPED, Bench
from bench.servers.systems import ReplicatedSystem, fresh_topic

_DEADLINE_S: Final = 120.0
_STEADY: Final = 50  # acknowledgements in a row
_STEADY_S: Final = 0.5
_POLL_S: Final = 0.01


class Pulse(threading.Thread):
    """Sends, and notes when each record was acknowledged."""

    def __init__(self, system: ReplicatedSystem, topic: str) -> None:
        super().__init__(name="pulse", daemon=True)
        self._system = system
        self._topic = topic
        self._ending = threading.Event()
        self._failed: BaseException | None = None
        self._acknowledged: list[float] = []

    def run(self) -> None:
        try:
            with self._system.sender(self._topic) as send:
                while not self._ending.is_set():
                    send()
                    self._acknowledged.append(time.perf_counter())
        except BaseException as error:  # noqa: BLE001 - raised again by who waits
            self._failed = error

    def stop(self) -> None:
        self._ending.set()
        self.join(_DEADLINE_S)

    def wait_until_steady(self, *, since: float = 0.0) -> None:
        """Waits until it has been served for a while, in which nothing was held up; raises
        SystemExit if that never comes."""
        deadline = time.perf_counter() + _DEADLINE_S
        while not self._is_steady(since):
            if self._failed is not None:
                raise SystemExit(f"A record was not acknowledged: {self._failed}")
            if time.perf_counter() > deadline:
                raise SystemExit(f"No records were acknowledged for {_DEADLINE_S:.0f} s.")
            time.sleep(_POLL_S)

    def _is_steady(self, since: float) -> bool:
        last = self._acknowledged[-_STEADY:]
        return len(last) == _STEADY and last[0] > since and last[-1] - last[0] < _STEADY_S

    def longest_pause(self, since: float) -> float:
        """Returns the longest time in seconds for which nothing was acknowledged."""
        times = [since, *(each for each in self._acknowledged if each > since)]
        return max(after - before for before, after in pairwise(times))


@contextmanager
def _pulse(system: ReplicatedSystem, topic: str) -> Iterator[Pulse]:
    pulse = Pulse(system, topic)
    pulse.start()
    try:
        yield pulse
    finally:
        pulse.stop()


def _wait_until_in_sync(system: ReplicatedSystem, topic: str) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while system.in_sync(topic) < system.replicas:
        if time.monotonic() > deadline:
            raise SystemExit(
                f"Only {system.in_sync(topic)} of {system.replicas} replicas of {topic} are in "
                f"sync after {_DEADLINE_S:.0f} s."
            )
        time.sleep(_POLL_S)


def _held_up(system: ReplicatedSystem, topic: str, *, killed: bool) -> float:
    """Ends the leader, and returns for how long nothing was acknowledged."""
    _wait_until_in_sync(system, topic)
    with _pulse(system, topic) as pulse:
        pulse.wait_until_steady()
        leader = system.server(system.leader(topic))
        began = time.perf_counter()
        if killed:
            leader.kill()
        else:
            leader.stop()
        if system.replicas == 1:
            leader.start()
        # What was under way when it ended is answered, then there is nothing for a while.
        pulse.wait_until_steady(since=began)
        if not killed:  # it may have been served while it was about to end
            pulse.wait_until_steady(since=time.perf_counter())
        pause = pulse.longest_pause(began)
    if system.replicas > 1:
        leader.start()
    _wait_until_in_sync(system, topic)
    return pause


def _measured(system: ReplicatedSystem) -> Metrics:
    with fresh_topic(system, partitions=1, flushed=True) as topic:
        return {
            KILLED: _held_up(system, topic, killed=True),
            STOPPED: _held_up(system, topic, killed=False),
        }


@dataclass(frozen=True)
class Failover:
    """Row of both systems, whose leaders are ended in turn."""

    title: str = "without service when the leader ends"
    unit: str = "s"

    def measure(self, bench: Bench) -> Iterator[tuple[str, Rounds]]:
        contenders = []
        for name in (KAFKA, LOGBUS):
            server = bench.servers.get(name)
            if server is not None:
                assert server.replicated is not None, "it was started to have replicas"
                contenders.append(self._contender(name, server.replicated))
        yield "", in_turn(contenders, lambda each, _: each.measure(), rounds=bench.rounds)

    @staticmethod
    def _contender(name: str, system: ReplicatedSystem) -> Contender:
        def measure() -> Metrics:
            found = _measured(system)
            shown = ", ".join(f"{what} {seconds:.2f} s" for what, seconds in found.items())
            console.print(f"  {name}: {shown}", markup=False, highlight=False)
            return found

        return Contender(name, measure)
