"""Copies of partitions led here, as the brokers that make them have told of them.

Only the last word of each counts, and only about the leader epoch and the log of the follower of
which it was said: a follower whose disk was emptied comes with another log id, and has nothing.
What is told decides how far consumers see, who is in sync and when the lead is handed over. So it
is noted only for brokers to which the partition is assigned or is to move (see
``broker.handlers.replicate``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from spark_logbus.broker.replica.states import LeaderPartition
from spark_logbus.clock import Clock
from spark_logbus.log import StagedPosition
from spark_logbus.metrics import Counter
from spark_logbus.model import TopicPartition

# A follower that lacks no more has what is left in a moment, whatever its rate.
_LITTLE_BYTES: Final = 1 << 20
# So has one that copies so fast that it needs no more seconds for it.
_LITTLE_S: Final = 0.2
_SMOOTHING: Final = 0.3  # weight of the last measured rate
_HEARD_AFTER_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a partition as its follower tells of it: the id of its log, that log's end and
    what of it is on disk, and of each write what is staged. ``since_us`` is the time of the move
    for which it was told: a copy is deleted when its move is cancelled, and it may be begun again.
    ``written_end`` is what counts in a topic that leaves flushing to the operating system, and
    ``refuses`` tells that the disk takes nothing more for now.
    """

    broker_id: int
    log_id: str
    offset: int
    flushed_end: int
    since_us: int
    staged: Mapping[int, StagedPosition] = field(default_factory=dict)
    written_end: int = 0
    refuses: bool = False

    @property
    def safe_end(self) -> int:
        """The end of what is as safe there as the topic's flush policy asks."""
        return max(self.flushed_end, self.written_end)

    def has(self, end: int, staged: Iterable[StagedPosition]) -> bool:
        """True if everything is on the follower's disk: the log up to ``end``, and what is staged
        with the leader."""
        return self.flushed_end == self.offset == end and all(
            (there := self.staged.get(each.write)) is not None
            and (there.size_bytes, there.flushed_bytes, there.digest)
            == (each.size_bytes, each.size_bytes, each.digest)
            for each in staged
        )

    @property
    def is_unflushed(self) -> bool:
        """True if not all of it is on the follower's disk."""
        return self.flushed_end < self.offset or any(
            each.flushed_bytes < each.size_bytes for each in self.staged.values()
        )

    def is_beyond(self, other: Copy) -> bool:
        """True if it has got further than the ``other`` one, which it was before."""
        return (self.offset, self.flushed_end) != (other.offset, other.flushed_end) or (
            self.staged != other.staged
        )


@dataclass(frozen=True, slots=True)
class Follower:
    """A follower of a partition as it is led here; times are monotonic seconds.

    ``lacking_bytes`` is about what the copy lacked when it was told of, and ``copied_bytes`` what
    it had. ``rate`` is in bytes a second, 0 as long as it is not known. ``got_on_at``: the last
    time when the copy had grown, or lacked nothing.
    """

    led: LeaderPartition
    copy: Copy
    lacking_bytes: int
    copied_bytes: int
    told_at: float
    got_on_at: float
    rate: float = 0.0
    sent_bytes: int = 0
    sent_at: float = 0.0
    was_near: bool = False  # when it told the last time before

    @property
    def is_near(self) -> bool:
        """True if it lacks little, by its size or by the time that it takes to copy it."""
        return self.lacking_bytes <= max(_LITTLE_BYTES, self.rate * _LITTLE_S)

    @property
    def has_all(self) -> bool:
        """True if it lacks nothing of the log, as that is now."""
        return self.copy.flushed_end == self.led.log.ends().log_end_offset

    @property
    def is_ready(self) -> bool:
        """True if it is near for the second time: then what it lacks is what has just come."""
        return not self.lacking_bytes or (self.is_near and self.was_near)


class Progress(NamedTuple):
    """Bytes that a follower has, of how many, and how long it has not got on."""

    copied_bytes: int
    total_bytes: int
    quiet_ms: int


class Followers:
    """Followers of the partitions that are led here. Thread-safe; lookups take no lock.

    ``written`` is called when a followed partition has something new for its followers.
    """

    def __init__(self, *, clock: Clock, written: Callable[[TopicPartition], None]) -> None:
        self._clock = clock
        self._written = written
        self._told = threading.Condition()
        self._followers: dict[TopicPartition, dict[int, Follower]] = {}  # by broker
        self._listeners: tuple[Callable[[Follower], None], ...] = ()
        self._handed_over: dict[TopicPartition, _NewLeader] = {}
        self.sent_bytes = Counter()

    def listen(self, listener: Callable[[Follower], None]) -> None:
        """Call ``listener`` after each word of a follower. It must not block."""
        self._listeners += (listener,)

    def tell(self, led: LeaderPartition, copy: Copy, *, lacking_bytes: int) -> None:
        """Note what a follower has told, in the place of all that it had told before. What it told
        in an earlier epoch of the log, and comes late, changes nothing."""
        topic_partition, now = led.log.topic_partition, self._clock.monotonic()
        with self._told:
            others = self._followers.setdefault(topic_partition, {})
            before = others.get(copy.broker_id)
            if (
                before is not None
                and before.led.log is led.log
                and before.led.leader_epoch > led.leader_epoch
            ):
                return
            follower = Follower(
                led,
                copy,
                lacking_bytes,
                copied_bytes=max(0, _size_bytes(led) - lacking_bytes),
                told_at=now,
                got_on_at=now,
            )
            if before is not None and before.led is led and _is_same(before.copy, copy):
                rate = before.rate
                if before.sent_bytes and now > before.sent_at:
                    last = before.sent_bytes / (now - before.sent_at)
                    rate = last if not rate else rate + _SMOOTHING * (last - rate)
                rests = lacking_bytes and not copy.is_beyond(before.copy)
                follower = replace(
                    follower,
                    rate=rate,
                    got_on_at=before.got_on_at if rests else now,
                    was_near=before.is_near,
                )
            if all(each.led.log is not led.log for each in others.values()):
                led.log.when_written(lambda: self._written(topic_partition))
            others[copy.broker_id] = follower
            self._told.notify_all()
        for listener in self._listeners:
            listener(follower)

    def sent(self, topic_partition: TopicPartition, broker_id: int, size_bytes: int) -> None:
        """Note how much a follower is sent, from which its rate is known when it comes again."""
        self.sent_bytes.add(size_bytes)
        now = self._clock.monotonic()
        with self._told:
            others = self._followers.get(topic_partition, {})
            follower = others.get(broker_id)
            if follower is not None:
                others[broker_id] = replace(follower, sent_bytes=size_bytes, sent_at=now)

    def find(self, led: LeaderPartition, broker_id: int) -> Follower | None:
        """A broker as a follower of a partition, in the epoch in which that is led; None if it has
        told nothing in that."""
        others = self._followers.get(led.log.topic_partition)
        follower = None if others is None else others.get(broker_id)
        return follower if follower is not None and follower.led is led else None

    def of(self, led: LeaderPartition) -> list[Follower]:
        """The followers of a partition that have told something in the epoch in which it is led."""
        others = self._followers.get(led.log.topic_partition, {})
        return [each for each in list(others.values()) if each.led is led]

    def progress(self, led: LeaderPartition, broker_id: int) -> Progress | None:
        """Returns how far a broker's copy of the partition has come; None if it has told
        nothing."""
        follower = self.find(led, broker_id)
        if follower is None:
            return None
        total_bytes = _size_bytes(led)
        return Progress(
            min(follower.copied_bytes, total_bytes),
            total_bytes,
            int(1000 * (self._clock.monotonic() - follower.got_on_at)),
        )

    def all(self) -> list[Follower]:
        """Followers that have told something, also in epochs that are over."""
        with self._told:
            return [each for others in self._followers.values() for each in others.values()]

    def wait_for(
        self,
        led: LeaderPartition,
        broker_id: int,
        condition: Callable[[Follower], bool],
        *,
        timeout_s: float,
    ) -> Copy | None:
        """Returns the broker's copy as soon as the condition holds of what it has told; None if
        that is not in time, or the broker does not follow any more."""

        def is_over() -> bool:
            follower = self.find(led, broker_id)
            return follower is None or condition(follower)

        with self._told:
            if not self._told.wait_for(is_over, timeout_s):
                return None
            follower = self.find(led, broker_id)
            return None if follower is None else follower.copy

    def wait_until(self, condition: Callable[[], bool], *, timeout_s: float) -> bool:
        """Waits until a condition on what followers have told holds; returns False if it does not
        in time."""
        with self._told:
            return self._told.wait_for(condition, timeout_s)

    def look_again(self) -> None:
        """Have those who wait look at their conditions."""
        with self._told:
            self._told.notify_all()

    def forget(self, topic_partition: TopicPartition, broker_id: int | None = None) -> None:
        """Forget a follower: the partition does not move to it any more, say. Without its id, all
        of a partition that is not led here any more."""
        with self._told:
            others = self._followers.get(topic_partition, {})
            logs = [each.led.log for each in others.values()]
            if broker_id is None:
                others.clear()
            else:
                others.pop(broker_id, None)
            for log in logs:
                if all(each.led.log is not log for each in others.values()):
                    log.when_written(None)
            if not others:
                self._followers.pop(topic_partition, None)
            self._told.notify_all()

    # -- partitions that were handed over -------------------------------------------------

    def hand_over(self, topic_partition: TopicPartition, topic_id: str, to: int) -> None:
        """Note that a broker leads the partition now, which may not have heard of it yet."""
        self._handed_over[topic_partition] = _NewLeader(topic_id, to, self._clock.monotonic())
        self.forget(topic_partition)

    def was_handed_over(self, topic_partition: TopicPartition, topic_id: str, to: int) -> bool:
        new = self._handed_over.get(topic_partition)
        return new is not None and (new.topic_id, new.broker_id) == (topic_id, to)

    def forget_handed_over(self) -> None:
        """Forget those that must have heard of it."""
        before = self._clock.monotonic() - _HEARD_AFTER_S
        for topic_partition, new in list(self._handed_over.items()):
            if new.since <= before:
                self._handed_over.pop(topic_partition, None)


def _size_bytes(led: LeaderPartition) -> int:
    """Bytes that are to be copied of a partition."""
    return led.log.ends().size_bytes + led.log.staging.totals.size_bytes


class _NewLeader(NamedTuple):
    topic_id: str
    broker_id: int
    since: float


def _is_same(copy: Copy, other: Copy) -> bool:
    return (copy.broker_id, copy.log_id, copy.since_us) == (
        other.broker_id, other.log_id, other.since_us,
    )  # fmt: skip
