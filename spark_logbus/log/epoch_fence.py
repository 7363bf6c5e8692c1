"""Leader epochs that take nothing more, because their lead is given away."""

from __future__ import annotations

from spark_logbus.errors import LogbusError


class EpochFence:
    """Refuses what is written in a leader epoch up to the one that is fenced. Whoever writes asks
    with the lock of its file held, so nothing comes after whoever sets the fence has held it."""

    def __init__(self) -> None:
        #: The last epoch that takes nothing.
        self.epoch = -1
        self._error: LogbusError | None = None

    def admits(self, leader_epoch: int) -> bool:
        """True if something is taken in that epoch."""
        return leader_epoch > self.epoch

    def check(self, leader_epoch: int) -> None:
        if not self.admits(leader_epoch):
            assert self._error is not None, "set before the epoch"
            raise self._error.again()

    def set(self, leader_epoch: int, error: LogbusError) -> None:
        """Have what is written in that epoch, or before, refused with ``error``."""
        self._error = error
        self.epoch = max(self.epoch, leader_epoch)

    def lift(self, leader_epoch: int) -> None:
        """Take what is written in that epoch again, if no later one is fenced."""
        if self.epoch == leader_epoch:
            self.epoch = leader_epoch - 1
