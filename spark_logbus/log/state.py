"""State that the threads of one log share: its view, and how far consumers see.

The lock here is held for a few assignments only, never while anything blocks.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from spark_logbus.log.environment import HighWatermarkRule
from spark_logbus.log.segment.lookup import BatchPosition, DamageFoundError
from spark_logbus.log.segment.segment import ActiveSegment, SealedSegment
from spark_logbus.log.view import LogView
from spark_logbus.model import LostOffsets, TopicPartition

logger = logging.getLogger(__name__)

Listener = Callable[[], None]


class _Published(NamedTuple):
    """Place of the records of an atomic write that are published; ``end`` is None as long as
    some are missing. A write that ``is_over`` is forgotten when consumers see it."""

    start: int
    end: int | None = None
    is_over: bool = False


class LogState:
    """View of a log, and the rule for its high watermark. Thread-safe; ``view`` may be read at any
    time without a lock."""

    def __init__(
        self, topic_partition: TopicPartition, view: LogView, *, watermark: HighWatermarkRule
    ) -> None:
        self.topic_partition = topic_partition
        self.view = view
        self._watermark = watermark
        # Also just after a roll, when it is the end of a sealed segment.
        self._durable = BatchPosition(view.high_watermark, view.visible_position)
        #: All before it is where the rule wants it; the high watermark may be held back earlier.
        self.replicated_end = view.high_watermark
        self._published: dict[int, _Published] = {}  # by write
        self._lock = threading.Lock()
        self._listeners: tuple[Listener, ...] = ()
        self._told = (view.high_watermark, False)
        #: Called with each ``tell_listeners``, before them.
        self.on_progress: Listener = lambda: None
        self._given_out = 0  # to replicas: what lies before it is not cut off in place

    # -- changes of the view ------------------------------------------------------------

    def advance_durable_position(self, end_offset: int, position: int) -> None:
        """Note that the active segment before ``position`` is as durable here as the topic's flush
        policy asks: on disk, or written where flushing is left to the operating system."""
        with self._lock:
            if end_offset > self._durable.offset:
                self._durable = BatchPosition(end_offset, position)
        self.advance_high_watermark()

    def advance_high_watermark(self) -> None:
        """Move the high watermark to where the rule has it, no further than what is durable here.

        It rests between two record batches, and within no atomic write; it does not move back.
        Where the disk does not show such a boundary it waits for the next.
        """
        with self._lock:
            durable = self._durable
            # By the rule as it is now, so that nothing is replicated by one of before later on.
            offset = self._watermark(self.topic_partition, durable.offset)
            self.replicated_end = max(self.replicated_end, offset)
            if self._published:
                offset = self._before_published(offset)
            if offset >= durable.offset:
                self._move_high_watermark(durable)
                return
        if offset > self.view.high_watermark:
            try:
                boundary = self.view.boundary_at(offset, durable.position)
            except (DamageFoundError, OSError) as error:
                logger.debug(
                    "The high watermark of %s cannot be at %d: %r",
                    self.topic_partition, offset, error,
                )  # fmt: skip
                return
            with self._lock:
                self._move_high_watermark(boundary)

    def settled_replicated_end(self) -> int:
        """Returns the replicated end when no rule is being asked."""
        with self._lock:
            return self.replicated_end

    def _move_high_watermark(self, end: BatchPosition) -> None:
        """``_lock`` is held."""
        if end.offset > self.view.high_watermark:
            self.view = self.view._replace(high_watermark=end.offset, visible_position=end.position)

    def lower_high_watermark(self, offset: int) -> None:
        """Have the high watermark, and what is replicated, at ``offset`` or where the record batch
        that holds it begins, if they are beyond. For a log that nobody reads yet. Raises OSError.
        """
        view = self.view
        if offset >= view.high_watermark:
            return
        start = max(offset, view.log_start_offset)
        try:
            boundary = view.boundary_at(start, self._durable.position)
        except DamageFoundError:
            boundary = BatchPosition(view.base_offsets[0], 0)
        with self._lock:
            end = max(boundary.offset, view.log_start_offset)  # a start may lie within a batch
            self.replicated_end = min(self.replicated_end, end)
            self.view = self.view._replace(high_watermark=end, visible_position=boundary.position)

    def _before_published(self, offset: int) -> int:
        """The last place up to ``offset`` that lies within no atomic write. ``_lock`` is held."""
        for write, published in list(self._published.items()):
            if published.is_over and published.end is not None and published.end <= offset:
                del self._published[write]
        while held := [
            each.start
            for each in self._published.values()
            if each.start < offset and (each.end is None or offset < each.end)
        ]:
            offset = min(held)
        return offset

    def cap_high_watermark(self, write: int, offset: int, *, end: int | None = None) -> None:
        """Keep the high watermark at ``offset``, where records of an atomic write begin, until it
        can pass ``end``, where they all end; without that, until ``bound_cap``. Goes back there if
        it is between the two, which only a log's may that nobody reads yet.

        Raises OSError, and DamageFoundError where the disk does not show that boundary.
        """
        with self._lock:
            before = self._published.get(write)
            start = offset if before is None else min(offset, before.start)
            self._published[write] = _Published(start, end)
            view, durable = self.view, self._durable
        if offset < view.high_watermark and (end is None or view.high_watermark < end):
            boundary = view.boundary_at(offset, durable.position)
            with self._lock:
                self.view = self.view._replace(
                    high_watermark=boundary.offset, visible_position=boundary.position
                )

    def bound_cap(self, write: int, end: int) -> None:
        """Let the high watermark pass a write all of whose records lie before ``end``, as soon as
        it can pass that; ``notify`` tells of them."""
        with self._lock:
            published = self._published.get(write)
            if published is not None and published.end is None:
                self._published[write] = published._replace(end=end)
        self.advance_high_watermark()

    def uncap_high_watermark(self, write: int) -> None:
        """End the cap of a write of which no more comes; where all of it is there, when consumers
        see it. ``notify`` tells of what they see."""
        with self._lock:
            published = self._published.get(write)
            if published is not None and published.end is not None:
                self._published[write] = published._replace(is_over=True)
            else:
                self._published.pop(write, None)
        self.advance_high_watermark()

    @property
    def hidden_from(self) -> int | None:
        """Offset from which on consumers see nothing, because a write is missing in part there."""
        with self._lock:
            starts = [each.start for each in self._published.values() if each.end is None]
        return min(starts, default=None)

    def uncap_all(self) -> None:
        """End all caps, of a log whose high watermark another broker gives from now on."""
        with self._lock:
            self._published = {}

    def roll(self, sealed: SealedSegment, active: ActiveSegment) -> None:
        """Put ``sealed``, flushed, in the place of the active segment, and ``active`` behind it."""
        with self._lock:
            self.view = self.view.with_segments((*self.view.sealed, sealed), active)

    def skip(
        self, sealed: Sequence[SealedSegment], active: ActiveSegment, lost: tuple[LostOffsets, ...]
    ) -> None:
        """Put ``active``, which is empty, behind offsets that are lost; ``sealed`` is what is there
        of the segment before it, all flushed. The high watermark stays until the rule moves it."""
        with self._lock:
            before, all_sealed = self.view, (*self.view.sealed, *sealed)
            first = all_sealed[0].base_offset if all_sealed else active.base_offset
            start = max(before.log_start_offset, first)
            view = LogView.flushed(all_sealed, active, log_start_offset=start, lost=lost)
            visible = BatchPosition(before.high_watermark, before.visible_position)
            if not all_sealed:
                visible = BatchPosition(start, 0)
            elif not sealed and visible.offset == before.active.base_offset:
                # The segment that began there goes: it is the end of the one before.
                visible = BatchPosition(visible.offset, all_sealed[-1].summary.size_bytes)
            self.view = view._replace(
                high_watermark=visible.offset, visible_position=visible.position
            )
            self._durable = BatchPosition(active.base_offset, 0)

    def first_to_be_cut(self, end: int) -> int:
        """Base offset of the first segment of a log up to ``end`` that a truncation may cut while
        it leaves the high watermark alone; ``end`` for none."""
        view = self.view
        if view.high_watermark >= end:
            return end
        return view.base_offsets[bisect_right(view.base_offsets, view.high_watermark) - 1]

    def give_out(self, end_of: Callable[[LogView], BatchPosition | None]) -> LogView | None:
        """Returns the view up to where the log ends, for a replica that may get slices of that;
        None where ``end_of`` finds no end.

        Such slices stay as they are, whatever the log is truncated to.
        """
        with self._lock:
            end = end_of(self.view)
            if end is None:
                return None
            self._given_out = max(self._given_out, end.offset)
            return self.view._replace(high_watermark=end.offset, visible_position=end.position)

    def truncate(
        self,
        sealed: tuple[SealedSegment, ...],
        active: ActiveSegment,
        end: BatchPosition,
        *,
        in_place: bool,
        change_tail: Callable[[], None],
    ) -> bool:
        """Have the log end at ``end``, in ``active``, and the high watermark no later. With
        ``in_place``, False, and nothing is changed, if a replica may hold slices of what is to be
        cut off."""
        with self._lock:
            if in_place and self._given_out > end.offset:
                return False
            self._given_out = min(self._given_out, end.offset)
            before = self.view
            view = LogView.flushed(
                sealed,
                active,
                log_start_offset=before.log_start_offset,
                lost=tuple(each for each in before.lost if each.end <= active.base_offset),
            )
            if before.high_watermark < end.offset:
                view = view._replace(
                    high_watermark=before.high_watermark, visible_position=before.visible_position
                )
            self.view = view
            self._durable = min(self._durable, end)
            self.replicated_end = min(self.replicated_end, end.offset)
            # Of what is cut off some is missing now; of some writes nothing is left.
            self._published = {
                write: each
                if each.end is not None and each.end <= end.offset
                else _Published(each.start)
                for write, each in self._published.items()
                if each.start < end.offset
            }
            change_tail()
            return True

    def drop_head(self, count: int) -> tuple[SealedSegment, ...]:
        """Take out the first sealed segments; the log starts after them."""
        with self._lock:
            view = self.view
            start = view.base_offsets[count]
            self.view = view.with_segments(view.sealed[count:], view.active, log_start_offset=start)
        return view.sealed[:count]

    def start_from(self, offset: int) -> tuple[SealedSegment, ...]:
        """Start the log at ``offset``, or at the high watermark if that lies before it; take out
        the segments that end there or earlier."""
        with self._lock:
            view = self.view
            start = min(offset, view.high_watermark)
            if start <= view.log_start_offset:
                return ()
            count = bisect_right(view.base_offsets, start) - 1
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

    # -- who listens --------------------------------------------------------------------

    def listen(self, listener: Listener) -> None:
        with self._lock:
            self._listeners += (listener,)

    def tell_listeners(self, *, offline: bool) -> None:
        """Call the listeners if the high watermark moved, or the log went offline, since the last
        time."""
        self.on_progress()
        with self._lock:
            now = (self.view.high_watermark, offline)
            listeners = self._listeners if now != self._told else ()
            self._told = now
        for listener in listeners:
            try:
                listener()
            except Exception:
                logger.exception("A listener for the high watermark failed.")
