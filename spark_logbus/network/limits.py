"""Limits on connections, and on threads that send from disk at a time."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter, deque
from typing import Final, Generic, TypeVar

from spark_logbus.errors import LimitExceededError
from spark_logbus.network.config import NetworkConfig
from spark_logbus.network.transport import Transport
from spark_logbus.protocol import ABOUT_CONNECTION, encode_error, frame_head

logger = logging.getLogger(__name__)

_HELLO_BYTES: Final = 4096
_THIS_MACHINE: Final = "this machine"
_CROWDED: Final = 0.75


class ConnectionQuotas:
    """Counts connections. Thread-safe.

    ``peer`` is an IP address, or a process of this machine for a ``local`` connection; those of
    all processes together count as of one address too.

    ``first_reserved``: connections with this descriptor or a higher one are refused, because
    they would take what the logs may need.
    """

    def __init__(self, config: NetworkConfig, *, first_reserved: float) -> None:
        self._config = config
        self._first_reserved = first_reserved
        self._lock = threading.Lock()
        self._open: Counter[str] = Counter()
        self._total = 0
        self._refused: Counter[str] = Counter()  # since the last report, by reason
        self.accepted = self.refused = 0  # since the start

    def admit(self, peer: str, *, local: bool, descriptor: int) -> None:
        """Count one more connection; LimitExceededError if there is no room for it."""
        with self._lock:
            reason = self._reason(peer, local, descriptor)
            if reason is None:
                self._open.update(_counted(peer, local=local))
                self._total += 1
                self.accepted += 1
                return
            self._refused[reason] += 1
            self.refused += 1
        raise LimitExceededError(
            f"The broker takes no further connection from {peer}: {reason}. Close connections "
            "that are not needed, or raise the limit in the broker's configuration."
        )

    def _reason(self, peer: str, local: bool, descriptor: int) -> str | None:
        config = self._config
        if self._total >= config.max_connections:
            return f"{config.max_connections} are open (max_connections)"
        most = config.max_connections_per_process
        if local and self._open[peer] >= most:
            return f"{most} of {peer} are open (max_connections_per_process)"
        address, most = _THIS_MACHINE if local else peer, config.max_connections_per_address
        if self._open[address] >= most:
            return f"{most} of {address} are open (max_connections_per_address)"
        if descriptor >= self._first_reserved:
            return "the limit of open files leaves no more (ulimit -n)"
        return None

    def is_crowded(self, peer: str, *, local: bool) -> bool:
        """Tells if there is little room left for more connections, of all or of that peer's."""
        with self._lock:
            total, here = self._total, self._open[_THIS_MACHINE if local else peer]
        config = self._config
        return (
            total >= _CROWDED * config.max_connections
            or here >= _CROWDED * config.max_connections_per_address
        )

    def leave(self, peer: str, *, local: bool) -> None:
        with self._lock:
            self._total -= 1
            for each in _counted(peer, local=local):
                self._open[each] -= 1
                if not self._open[each]:
                    del self._open[each]

    def report(self) -> None:
        """Log the refusals since the last report. Not at once: refused clients come again soon."""
        with self._lock:
            refused, self._refused = self._refused, Counter()
        for reason, count in refused.items():
            logger.warning("Refused %d connections: %s.", count, reason)


def _counted(peer: str, *, local: bool) -> tuple[str, ...]:
    return (peer, _THIS_MACHINE) if local else (peer,)


def turn_away(transport: Transport, error: LimitExceededError) -> None:
    """Close a connection and send the reason, if that can be done without waiting."""
    header = encode_error(error)
    with contextlib.suppress(OSError):
        head = frame_head(api=ABOUT_CONNECTION, version=0, correlation=0, header=header)
        transport.send(memoryview(head), more=False)
        # Bytes that lie unread at the end make it a reset, which can overtake the answer.
        transport.receive_into(memoryview(bytearray(_HELLO_BYTES)))
    transport.close()


T = TypeVar("T")


class SendSlots(Generic[T]):
    """Bounds the threads that send from segments at a time. Thread-safe.

    Sending what is not in the page cache waits for the disk. With fewer slots than threads,
    however many readers of old records there are, some threads are left for everyone else.
    Without a free slot a connection is parked, and the next thread that is done sends for it.
    """

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._free = count
        self._parked: deque[T] = deque()

    def enter(self, one: T) -> bool:
        """True: send, then ``leave``. False: ``one`` is parked, and the caller is done with it."""
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            self._parked.append(one)
            return False

    def leave(self) -> T | None:
        """Give the slot back; or get the next parked one to send for, and then ``leave`` again."""
        with self._lock:
            if self._parked:
                return self._parked.popleft()
            self._free += 1
            return None

    def clear(self) -> list[T]:
        """Take out all that are parked."""
        with self._lock:
            parked = list(self._parked)
            self._parked.clear()
        return parked
