"""State that the threads of one log share: its view, the error that took it offline, and waiters.

The lock here is held for a few assignments only, never while anything blocks.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence

from spark_logbus.errors import LogbusError, PartitionOfflineError
from spark_logbus.log.environment import HighWatermarkRule
from spark_logbus.log.segment.lookup import BatchPosition, DamageFoundError
from spark_logbus.log.segment.segment import ActiveSegment, SealedSegment
from spark_logbus.log.view import LogView
from spark_logbus.model import LostOffsets, TopicPartition
from spark_logbus.timers import DueHeap

logger = logging.getLogger(__name__)

OnFlushed = Callable[[LogbusError | None], None]
Listener = Callable[[], None]


class LogState:
    """Thread-safe. ``view`` and ``offline`` may be read at any time without a lock."""

    def __init__(
        self, topic_partition: TopicPartition, view: LogView, *, watermark: HighWatermarkRule
    ) -> None:
        self.topic_partition = topic_partition
        self.view = view
        self._watermark = watermark
        # Also just after a roll, when it is the end of a sealed segment.
        self._durable = BatchPosition(view.flushed_end, view.active.metadata.size_bytes)
        self._caps: dict[int, int] = {}  # by write, where its records begin
        self.offline: LogbusError | None = None
        self._lock = threading.Lock()
        self._waiting: DueHeap[OnFlushed] = DueHeap()  # by the end offset of their append
        self._listeners: tuple[Listener, ...] = ()
        self._notified = (view.high_watermark, False)

    def raise_if_offline(self) -> None:
        if self.offline is not None:
            raise self.offline.again()

    # -- changes of the view ------------------------------------------------------------

    def flushed(self, end_offset: int, position: int) -> None:
        """Note that all of the active segment before ``position`` is on disk."""
        with self._lock:
            self.view = self.view._replace(flushed_end=end_offset)
        self.advance_durable_position(end_offset, position)

    def advance_durable_position(self, end_offset: int, position: int) -> None:
        """Note that the active segment before ``position`` is as durable here as the topic's flush
        policy asks: on disk, or written where flushing is left to the operating system."""
        with self._lock:
            if end_offset > self._durable.offset:
                self._durable = BatchPosition(end_offset, position)
        self.advance_high_watermark()

    def advance_high_watermark(self) -> None:
        """Move the high watermark to where the rule has it, no further than what is durable here.

        It rests between two record batches, and does not move back. Where the disk does not show
        such a boundary it waits for the next.
        """
        durable = self._durable
        offset = self._watermark(self.topic_partition, durable.offset)
        if self._caps:
            with self._lock:
                offset = min([offset, *self._caps.values()])
        if offset >= durable.offset:
            self._publish(durable)
        elif offset > self.view.high_watermark:
            try:
                self._publish(self.view.boundary_at(offset, durable.position))
            except (DamageFoundError, OSError) as error:
                logger.debug(
                    "The high watermark of %s cannot be at %d: %r",
                    self.topic_partition, offset, error,
                )  # fmt: skip

    def _publish(self, end: BatchPosition) -> None:
        with self._lock:
            if end.offset > self.view.high_watermark:
                self.view = self.view._replace(
                    high_watermark=end.offset, visible_position=end.position
                )

    def cap_high_watermark(self, write: int, offset: int) -> None:
        """Keep the high watermark at ``offset``, where records of an atomic write begin, until
        ``uncap_high_watermark``. Goes back there if it is beyond, which only a log may that nobody
        reads yet.

        Raises OSError, and DamageFoundError where the disk does not show that boundary.
        """
        with self._lock:
            self._caps[write] = min(offset, self._caps.get(write, offset))
        view, durable = self.view, self._durable
        if offset < view.high_watermark:
            boundary = view.boundary_at(offset, durable.position)
            with self._lock:
                self.view = self.view._replace(
                    high_watermark=boundary.offset, visible_position=boundary.position
                )

    def uncap_high_watermark(self, write: int) -> None:
        """End the cap of a write whose records are all as durable as they are to be; ``notify``
        tells of them."""
        with self._lock:
            self._caps.pop(write, None)
        self.advance_high_watermark()

    def roll(self, sealed: SealedSegment, active: ActiveSegment) -> None:
        """Put ``sealed``, flushed, in the place of the active segment, and ``active`` behind it."""
        with self._lock:
            self.view = self.view.with_segments((*self.view.sealed, sealed), active)

    def skip(
        self, sealed: Sequence[SealedSegment], active: ActiveSegment, lost: tuple[LostOffsets, ...]
    ) -> None:
        """Put ``active``, which is empty, behind offsets that are lost; ``sealed`` is what is there
        of the segment before it, all flushed."""
        with self._lock:
            before, all_sealed = self.view, (*self.view.sealed, *sealed)
            first = all_sealed[0].base_offset if all_sealed else active.base_offset
            start = max(before.log_start_offset, first)
            view = LogView.flushed(all_sealed, active, log_start_offset=start, lost=lost)
            if self._caps:
                view = view._replace(
                    high_watermark=before.high_watermark, visible_position=before.visible_position
                )
            self.view = view
            self._durable = BatchPosition(active.base_offset, 0)

    def drop_head(self, count: int) -> tuple[SealedSegment, ...]:
        """Take out the first sealed segments; the log starts after them."""
        with self._lock:
            view = self.view
            start = view.base_offsets[count]
            self.view = view.with_segments(view.sealed[count:], view.active, log_start_offset=start)
        return view.sealed[:count]

    def replace(self, old: tuple[SealedSegment, ...], new: SealedSegment) -> bool:
        """Put ``new`` in the place of ``old``; False if they are not all there any more."""
        with self._lock:
            view = self.view
            start = next((n for n, segment in enumerate(view.sealed) if segment is old[0]), None)
            if start is None or view.sealed[start : start + len(old)] != old:
                return False
            sealed = (*view.sealed[:start], new, *view.sealed[start + len(old) :])
            self.view = view.with_segments(sealed, view.active)
            return True

    # -- going offline ------------------------------------------------------------------

    def fail(self, why: str) -> PartitionOfflineError:
        """Take the log offline for good; ``notify`` then passes it on to those who wait."""
        error = PartitionOfflineError(
            f"Partition {self.topic_partition} is offline. {why} Records before offset "
            f"{self.view.high_watermark} stay readable; mend the disk and restart the broker."
        )
        if self.stop(error):
            where = self.topic_partition
            logger.critical("%s", error, extra={"topic": where.topic, "partition": where.partition})
        return error.again()

    def stop(self, error: LogbusError) -> bool:
        """Refuse appends with ``error`` from now on; False if something else does already."""
        with self._lock:
            if self.offline is not None:
                return False
            self.offline = error
            return True

    # -- who waits ----------------------------------------------------------------------

    def wait(self, end_offset: int, callback: OnFlushed) -> bool:
        """Keep ``callback`` until ``notify``; False if its answer was known, and it was called."""
        with self._lock:
            if self.view.flushed_end < end_offset and self.offline is None:
                self._waiting.add(end_offset, callback)
                return True
            error = self.offline if self.view.flushed_end < end_offset else None
        _call_back([callback], error)
        return False

    def listen(self, listener: Listener) -> None:
        with self._lock:
            self._listeners += (listener,)

    def notify(self) -> None:
        """Call back all whose append is flushed or failed; notify if there is news."""
        with self._lock:
            flushed = self._take_waiting(self.view.flushed_end)
            failure = self.offline
            failed = self._take_waiting(math.inf) if failure is not None else []
            now = (self.view.high_watermark, failure is not None)
            listeners = self._listeners if now != self._notified else ()
            self._notified = now
        _call_back(flushed, None)
        _call_back(failed, failure)
        for listener in listeners:
            try:
                listener()
            except Exception:
                logger.exception("A listener for the high watermark failed.")

    def _take_waiting(self, end_offset: float) -> list[OnFlushed]:
        taken = []
        while (entry := self._waiting.pop_due(end_offset)) is not None:
            taken.append(entry[1])
        return taken


def _call_back(callbacks: list[OnFlushed], error: LogbusError | None) -> None:
    """Call all; one that raises does not keep the others waiting."""
    for callback in callbacks:
        try:
            callback(error)
        except Exception:
            logger.exception("A callback for a flushed append failed.")
