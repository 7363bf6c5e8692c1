"""Bounds on memory that many connections share.

Requests that come in take memory as their bytes come, so that an announced length costs nothing.
Several could then each hold a part and wait for the rest for ever. So a memory pool has two parts:

* the **shared part**, of which a frame takes what it needs for its next step, if that is there and
  its peer has not had its share;
* the **last resort**, as large as the largest frame can be, which one frame at a time has to
  itself. It goes to one that waits, and that takes all of its further memory from it and never
  waits again.

So of all frames that wait, one always gets through if its sender sends, and gives back what it
held of both parts; the next one that waits then gets the last resort. A sender that does not send
is cut off by the limits on time and rate (see ``receiver``), and that has the same effect.

Peers take turns at what becomes free, one step each; frames of one peer are served in the order
in which they began to wait. A peer that fills its share waits for itself and for the last resort,
and not for others, nor they for it. Requests of the usual size have a pool of their own, so that
they never wait for large ones, not even for those of the same peer.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Final

from spark_logbus.network.config import NetworkConfig

# A producer's largest record batch by default is 1 MiB, and its request a little more.
_USUAL: Final = (1 << 20) + (64 << 10)


class _Peer:
    """One peer's part of a pool, and its frames that wait. Under the pool's lock."""

    __slots__ = ("name", "pooled", "reservations", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.reservations = 0  # that are not over
        self.pooled = 0
        self.waiting: deque[Reservation] = deque()


class MemoryPool:
    """Gives out so many bytes step by step, and bounds each peer's share of them. Thread-safe.

    ``total`` includes the last resort of ``largest`` bytes, the most that one reservation may
    grow to; ``share`` is what all reservations of one peer hold of the shared part at most.
    """

    def __init__(self, total: int, *, largest: int, share: int) -> None:
        self._shared = max(0, total - largest)
        self._share = share
        self._lock = threading.Lock()
        self._pooled = 0
        self._last_resort: Reservation | None = None
        self._peers: dict[str, _Peer] = {}  # that have reservations
        self._turns: deque[_Peer] = deque()  # peers with frames that wait; the next one first

    @property
    def used(self) -> int:
        last = self._last_resort
        return self._pooled + (last.size - last.pooled if last is not None else 0)

    def open(self, peer: str, granted: Callable[[], None]) -> Reservation:
        """A reservation of nothing yet. ``granted`` is called when a step is granted that had to
        wait, from any thread; it must not block."""
        with self._lock:
            of = self._peers.get(peer)
            if of is None:
                of = self._peers[peer] = _Peer(peer)
            of.reservations += 1
        return Reservation(self, of, granted)

    def grow(self, reservation: Reservation, size: int) -> bool:
        """Internal: called by ``Reservation``."""
        with self._lock:
            peer = reservation.peer
            reservation.wanted = size
            if reservation is self._last_resort:
                self._grant(reservation)
            elif not peer.waiting and self._fits(peer, size):
                self._take(peer, reservation)
            else:
                if not peer.waiting:
                    self._turns.append(peer)
                peer.waiting.append(reservation)
                if self._last_resort is None:  # then nobody else waits, and it gets that
                    self._serve()
            return reservation.granted

    def _fits(self, peer: _Peer, size: int) -> bool:
        return self._pooled + size <= self._shared and peer.pooled + size <= self._share

    def _take(self, peer: _Peer, reservation: Reservation) -> None:
        size = reservation.wanted
        self._pooled += size
        peer.pooled += size
        reservation.pooled += size
        self._grant(reservation)

    def _grant(self, reservation: Reservation) -> None:
        reservation.size += reservation.wanted
        reservation.wanted = 0

    def release(self, reservation: Reservation) -> None:
        """Give back what was got, and wait no longer. For ``Reservation`` only."""
        with self._lock:
            if reservation.over:
                return
            reservation.over = True
            peer = reservation.peer
            peer.reservations -= 1
            if not peer.reservations:
                del self._peers[peer.name]
            self._pooled -= reservation.pooled
            peer.pooled -= reservation.pooled
            if reservation is self._last_resort:
                self._last_resort = None
            if not reservation.granted:
                peer.waiting.remove(reservation)
                if not peer.waiting:
                    self._turns.remove(peer)
            woken = self._serve()
        for each in woken:
            each.notify()

    def _serve(self) -> list[Reservation]:
        """Grant what can be granted to those that wait; returns the ones that got it."""
        served: list[Reservation] = []
        passed = 0  # peers in a row that could get nothing
        while self._turns and passed < len(self._turns):
            peer = self._turns.popleft()
            first = peer.waiting[0]
            if self._fits(peer, first.wanted):
                self._take(peer, first)
            elif self._last_resort is None:
                self._last_resort = first
                self._grant(first)
            else:
                self._turns.append(peer)
                passed += 1
                continue
            passed = 0
            served.append(peer.waiting.popleft())
            if peer.waiting:
                self._turns.append(peer)
        return served


class Reservation:
    """A growing part of a pool, or a place in the queue for more. Thread-safe; grown by one thread
    at a time, and not while a step waits."""

    __slots__ = ("_pool", "notify", "over", "peer", "pooled", "size", "wanted")

    def __init__(self, pool: MemoryPool, peer: _Peer, notify: Callable[[], None]) -> None:
        self._pool = pool
        self.peer = peer
        self.notify = notify
        self.size = 0  # bytes that it holds
        self.pooled = 0  # ... of the shared part
        self.wanted = 0  # bytes of the step that it waits for
        self.over = False

    @property
    def granted(self) -> bool:
        """True if it waits for nothing."""
        return not self.wanted

    def grow(self, size: int) -> bool:
        """Take ``size`` bytes more; False when they have to be waited for."""
        return self._pool.grow(self, size)

    def release(self) -> None:
        """May be called more than once."""
        self._pool.release(self)


class UsedMemory:
    """Memory that is in use already, counted against a bound, even beyond it. Thread-safe."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._lock = threading.Lock()
        self._used = 0

    @property
    def used(self) -> int:
        return self._used

    @property
    def exhausted(self) -> bool:
        return self._used >= self._total

    def charge(self, size: int) -> Charge:
        self.add(size)
        return Charge(self, size)

    def add(self, size: int) -> None:
        """Internal: called by ``Charge`` and ``charge``."""
        with self._lock:
            self._used += size


class Charge:
    """Part of the memory that a ``UsedMemory`` counts. Not thread-safe."""

    __slots__ = ("_size", "_tally")

    def __init__(self, tally: UsedMemory, size: int) -> None:
        self._tally = tally
        self._size = size

    def release(self) -> None:
        """May be called more than once."""
        size, self._size = self._size, 0
        self._tally.add(-size)


class Memory:
    """Memory that a broker's connections share, each of ``max_buffered_bytes``. Thread-safe.

    Incoming memory is reserved while a frame is received. ``waiting`` counts requests that wait
    for their answer and answers that wait for their reader: when it is used up, each connection
    gets one at a time. They are apart so that clients that do not read cannot keep producers out.
    """

    def __init__(self, config: NetworkConfig) -> None:
        total, largest = config.max_buffered_bytes, config.largest_request_bytes
        share = config.max_buffered_bytes_per_peer
        if largest <= _USUAL:
            self._usual = self._large = MemoryPool(total, largest=largest, share=share)
        else:
            usual = min(total // 4, (total - largest) // 2)
            self._usual = MemoryPool(usual, largest=_USUAL, share=share // 2)
            self._large = MemoryPool(total - usual, largest=largest, share=share // 2)
        self.waiting = UsedMemory(total)

    def incoming(self, size: int) -> MemoryPool:
        """The pool for a request that takes so many bytes in the end."""
        return self._usual if size <= _USUAL else self._large

    @property
    def incoming_bytes(self) -> int:
        """Bytes that all requests that are coming in have reserved."""
        both = {self._usual, self._large}
        return sum(pool.used for pool in both)


_SMALLEST = 64 << 10  # below this, the allocator does as well
_KEPT_BYTES = 32 << 20


class BufferPool:
    """Keeps used buffers ready for the next requests of about their size. Thread-safe.

    New memory of a megabyte costs as much time as checksumming it, because the kernel has to clear
    it. It is asked for from the kernel itself and goes back there: from the C library's allocator,
    which keeps a heap for each thread, a broker grew to twice its size.

    New memory is there when it is written to, page by page, so whoever takes much and writes
    little costs little. Memory that was used is there already: it is bounded, and counts as long
    as it lies ready or is in use again, or those who take and do not write would gather it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: defaultdict[int, list[mmap]] = defaultdict(list)
        self._again: set[int] = set()  # buffers that are in use again
        self._kept_bytes = 0  # of both

    def take(self, size: int) -> memoryview:
        """``size`` bytes of any content; ``give`` them back, in any event."""
        if size < _SMALLEST:
            return memoryview(bytearray(size))
        step = 1 << (size.bit_length() - 4)  # 8 capacities lie between a size and its double
        capacity = -(-size // step) * step
        with self._lock:
            idle = self._idle[capacity]
            buffer = idle.pop() if idle else None
            if buffer is not None:
                self._again.add(id(buffer))
        if buffer is None:
            buffer = mmap(-1, capacity, flags=MAP_PRIVATE | MAP_ANONYMOUS)
        return memoryview(buffer)[:size]

    def give(self, view: memoryview) -> None:
        """Take back what ``take`` gave; nobody may look at it any more."""
        buffer = view.obj
        if not isinstance(buffer, mmap):
            return
        with self._lock:
            if id(buffer) in self._again:
                self._again.remove(id(buffer))
            elif self._kept_bytes + len(buffer) <= _KEPT_BYTES:
                self._kept_bytes += len(buffer)
            else:
                return
            self._idle[len(buffer)].append(buffer)
