"""Threads that work until they are told to stop, and whose errors a test sees."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.fault.load.records import WAIT_S
from tests.helpers import wait_until


class Participant(threading.Thread):
    """Works until it is told to stop. ``progress`` rises as it gets on; of one that is slow nobody
    waits for it."""

    is_slow = False

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.stopping = threading.Event()
        self.error = ""
        self.progress = 0

    def run(self) -> None:
        try:
            self.work()
        except BaseException:  # noqa: BLE001 - whatever it is, the test fails with it
            self.error = f"{self.name} has failed:\n{traceback.format_exc()}"

    def work(self) -> None:
        raise NotImplementedError


class Everyone:
    """Participants that work at the same time."""

    def __init__(self, participants: Sequence[Participant]) -> None:
        self.participants = participants

    def check(self) -> None:
        """Fails with the errors of those who were hit by one."""
        failed = [each.error for each in self.participants if each.error]
        assert not failed, "\n".join(failed)

    def get_on(self, *, steps: int = 2) -> None:
        """Waits until everyone has got on by so many steps."""
        goals = [(each, each.progress + steps) for each in self.participants if not each.is_slow]

        def behind() -> list[str]:
            self.check()
            return [each.name for each, goal in goals if each.progress < goal]

        wait_until(lambda: not behind(), deadline_s=WAIT_S, message="all to get on")

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Lets them work; at the end all have done their last, without an error."""
        for each in self.participants:
            each.start()
        try:
            yield
        finally:
            self.stop(self.participants)
        self.check()

    def stop(self, some: Sequence[Participant]) -> None:
        for each in some:
            each.stopping.set()
        for each in some:
            each.join(WAIT_S)
            assert not each.is_alive(), f"{each.name} does not end"
