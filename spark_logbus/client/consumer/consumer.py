"""The consumer: reads assigned partitions onwards, and waits for what is not there yet."""

from __future__ import annotations

import logging
import math
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Final, Generic, Self

from spark_logbus.client.admin.admin import Admin
from spark_logbus.client.arguments import (
    as_max_records,
    as_offset_spec,
    as_timeout_ms,
    as_topic,
    as_topic_partitions,
    names_keywords,
)
from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.client.config import ConsumerConfig
from spark_logbus.client.consumer.failures import PartitionFailures
from spark_logbus.client.consumer.fetcher import Fetcher, Position
from spark_logbus.client.consumer.positions import ConsumerPositions
from spark_logbus.client.consumer.start_offsets import StartOffsets
from spark_logbus.client.consumer.value_readers import ValueReaders
from spark_logbus.client.fetch.batches import FetchedBatch
from spark_logbus.client.fetch.records import ConsumerRecord, V
from spark_logbus.client.fetch.tables import TableBudget, table_of
from spark_logbus.client.shortened import shortened
from spark_logbus.clock import elapsed
from spark_logbus.errors import (
    ConfigError,
    GroupRewoundError,
    InvalidRequestError,
    LogbusError,
)
from spark_logbus.model import AtOffset, Latest, OffsetSpec, TopicPartition
from spark_logbus.retry import Deadline
from spark_logbus.selection import Pattern, Topics, named_topics

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from spark_logbus.client.consumer.group.group import ConsumerGroup
    from spark_logbus.client.consumer.group.subscription import PartitionsCallback, Subscription
    from spark_logbus.client.metrics import ClientKind

logger = logging.getLogger(__name__)

_ITERATION_POLL_S: Final = 1.0  # between two chances to be interrupted
_SHARE_LOOK_MS: Final = 100  # of one that reads nothing, between looks whether it is to


class Consumer(Generic[V]):
    """Reads the partitions it is assigned, each in order. Not thread-safe.

    ``poll_arrow`` gives whole arrow batches, iteration gives single records and blocks until
    there are some. The position of a partition is the offset of the next record to hand out;
    ``commit`` stores positions for the group. The cluster is shared, not owned.

    What was handed out counts as dealt with when the consumer is asked for more: only then does it
    commit it by itself. Leaving the ``with`` block counts as well, but not when an exception leaves
    it, nor for the last record of a loop over the consumer. ``commit`` counts all.

    A position is of one topic, known by its id: when the topic is deleted and created again,
    nothing is read or committed at the old position in the new topic.
    """

    def __init__(self, cluster: Cluster, config: ConsumerConfig | None = None) -> None:
        self._cluster = cluster
        self._config = config or ConsumerConfig()
        self._admin = Admin(cluster)
        failures = PartitionFailures(cluster)
        self._values = ValueReaders(cluster, self._config)
        self._fetcher = Fetcher(cluster, self._config, failures)
        self._positions = ConsumerPositions(
            StartOffsets(cluster, self._config, failures, group=self._opened_group),
            self._fetcher,
            failures,
            self._values,
            out_of_range=self._config.out_of_range,
            max_decoded_bytes=self._config.max_decoded_bytes,
        )
        self._group: ConsumerGroup | None = None
        self._subscription: Subscription | None = None
        self._calls_back = False
        self._closed = False
        self._commits = self._failed_commits = 0
        self._subscribed: Collection[str] = ()
        self._commit_due = math.inf
        self._auto_committed: dict[TopicPartition, Position] = {}

    # -- what to read ---------------------------------------------------------------------

    def assign(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, whoever else reads them. Positions of those that stay are
        kept."""
        self.unsubscribe()
        self._read_exactly(topic_partitions)

    def _read_exactly(self, topic_partitions: Iterable[TopicPartition]) -> None:
        self._positions.read_exactly(as_topic_partitions(topic_partitions))
        self._auto_committed = {
            each: at for each, at in self._auto_committed.items() if each in self._positions
        }

    def assign_topics(self, *topics: str) -> None:
        """Read all partitions of these topics. UnknownTopicError."""
        described = self._admin.describe([as_topic(each) for each in topics], ends=False)
        self.assign(
            TopicPartition(name, number)
            for name, topic in described.items()
            for number in topic.partitions
        )

    def subscribe(
        self,
        topics: str | Iterable[str] | re.Pattern[str],
        *,
        on_assigned: PartitionsCallback | None = None,
        on_revoked: PartitionsCallback | None = None,
        on_lost: PartitionsCallback | None = None,
    ) -> None:
        """Share the partitions of these topics with all who subscribe in the same group; with a
        pattern, of all topics whose whole name matches, also of those that come later.

        A partition is read by one of them at any time. Who reads what changes as consumers come and
        go, while records are asked for: then ``on_assigned`` gets the partitions that are read from
        now on, ``on_revoked`` those that are given up (what was handed out of them can still be
        committed, as it is by itself unless ``auto_commit_ms`` is None), and ``on_lost`` those that
        others have meanwhile, because ZooKeeper has not heard of this consumer for too long.

        Raises CoordinationError, and GroupHeldError when a query or load reads a topic for the
        group.
        """
        # Imported here: most users of this package never talk to ZooKeeper.
        from spark_logbus.client.consumer.group import subscription
        from spark_logbus.coordination.groups.assignment import Assignor
        from spark_logbus.coordination.groups.membership import check_subscribed

        wanted: Topics | Pattern = (
            Pattern(topics.pattern)
            if isinstance(topics, re.Pattern)
            else Topics(tuple(map(as_topic, [topics] if isinstance(topics, str) else topics)))
        )
        group = self._opened_group()
        check_subscribed(wanted)
        group.require_no_query(named_topics(wanted) or ())
        self.unsubscribe()
        self._read_exactly([])
        self._subscription = subscription.Subscription(
            group.join(
                wanted,
                assignor=Assignor(self._config.assignor),
                max_poll_interval_ms=self._config.max_poll_interval_ms,
            ),
            subscription.Callbacks(
                on_assigned or subscription.ignore,
                on_revoked or subscription.ignore,
                on_lost or subscription.ignore,
            ),
            read=self._read_exactly,
            commit=self._commit_revoked,
        )
        self._subscribed = wanted.names if isinstance(wanted, Topics) else [repr(wanted.pattern)]
        self._schedule_commit()

    def unsubscribe(self, *, failed: bool | None = None) -> None:
        """Leave the group, and read nothing; does nothing without a subscription. ``failed`` is as
        in ``close``."""
        subscription = self._subscription
        if subscription is not None:
            if not ((_in_flight() if failed is None else failed) or self._positions.in_loop):
                self._positions.settle()
            try:
                with self._calling_back():
                    subscription.close()
            finally:
                self._subscription, self._subscribed = None, ()
                self._opened_group().leave()
                self._read_exactly([])

    @property
    def assignment(self) -> list[TopicPartition]:
        return self._positions.partitions

    def pause(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these until ``resume``; their positions stay, and so does the
        assignment. InvalidRequestError for one that is not assigned."""
        paused = as_topic_partitions(topic_partitions)
        for topic_partition in paused:
            self._positions.require(topic_partition)
        for topic_partition in paused:
            self._positions.pause(topic_partition)

    def resume(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Hand out records of these again; does nothing about those that are not paused."""
        for topic_partition in as_topic_partitions(topic_partitions):
            self._positions.resume(topic_partition)

    @property
    def paused(self) -> list[TopicPartition]:
        return self._positions.paused

    def seek(self, topic_partition: TopicPartition, to: int | str | OffsetSpec) -> None:
        """Go on from there: an offset, ``"earliest"``, ``"-1000"`` records or ``"-10 minutes"``
        before the end, or an ``OffsetSpec``. A timestamp that no record has reached yet means the
        end.

        An offset is of the topic that is being read; once a topic of the same name has taken its
        place, and that was raised, of the new one.
        """
        self._positions.require(topic_partition)
        place = AtOffset(to) if isinstance(to, int) else to
        self._positions.seek(topic_partition, as_offset_spec("The place to seek", place))

    def position(self, topic_partition: TopicPartition) -> int:
        """The offset of the next record that this consumer hands out."""
        self._positions.require(topic_partition)
        return self._positions.find_position(topic_partition).offset

    # -- reading --------------------------------------------------------------------------

    @property
    def dropped_records(self) -> int:
        """The number of records that were left out so far, as their values do not decode and
        ``on_undecodable`` is ``"drop"``."""
        return self._values.dropped

    @names_keywords
    def poll_arrow(self, timeout_s: float = 1.0) -> list[FetchedBatch]:
        """Records that arrive within ``timeout_s``; returns those that are there as soon as there
        are some, up to ``max_decoded_bytes`` of them. Positions move past them. Empty if none came.
        Finding a leader may take the connect timeout longer.

        Partitions whose broker is away wait for it, which is logged once, while the others are
        read; so do those with schemas that are not known yet while ZooKeeper is. Raises
        OffsetOutOfRangeError and TopicRecreatedError unless ``out_of_range`` says otherwise,
        UnknownTopicError, CorruptRecordBatchError and UndecodableRecordError, which name where to
        go on behind them, and the retriable ones when no partition could be read for the retry
        deadline.
        """
        timeout_ms = as_timeout_ms(timeout_s)
        self._begin_call()
        return self._take_arrow(timeout_ms)

    def _take_arrow(self, timeout_ms: float) -> list[FetchedBatch]:
        """Polls as ``poll_arrow`` does, in the same call as what was taken before."""
        deadline = self._cluster.deadline_ms(timeout_ms)
        waited = False
        while self._rebalance(deadline):
            batches = self._positions.take_all()
            if batches:
                return batches
            if waited and deadline.expired:
                break
            self._receive(deadline)
            waited = True
        return []

    @names_keywords
    def poll(self, timeout_s: float = 1.0, *, max_records: int = 500) -> list[ConsumerRecord[V]]:
        """Returns up to ``max_records`` records, as soon as there are some, or none after
        ``timeout_s``; the position moves past them only. Raises what ``poll_arrow`` does."""
        most = as_max_records(max_records)
        deadline = self._cluster.deadline_ms(as_timeout_ms(timeout_s))
        while self._prepare_iteration(deadline):
            records = self._positions.take_records(most)
            if records:
                return records
        return []

    def to_arrow(self, *, max_bytes: int | None = None) -> pa.Table:
        """All records from the positions to the ends as they are now, of the partitions that are
        read and not paused; positions move past them, or past none when an error is raised. A few
        that came since may be among them.

        Columns: topic, partition, offset, timestamp, key, value, headers; ``value`` of topics with
        a schema is a struct of its fields. Raises what ``poll_arrow`` does, and InvalidRequestError
        for topics whose values have different types; waits for leaders that are away.

        All is in memory at once. More than ``max_bytes``, as decoded, raises
        RecordBatchTooLargeError; without it, a warning tells of a table of 1 GiB.
        """
        self._begin_call()
        ends = self._admin.list_offsets(
            {each: Latest() for each in self.assignment if each not in self.paused}
        )
        batches: list[FetchedBatch] = []
        budget = TableBudget(max_bytes)
        try:
            while any(
                each in self._positions and self.position(each) < (end or 0)
                for each, end in ends.items()
            ):
                found = self._take_arrow(1000 * _ITERATION_POLL_S)
                budget.add(found)
                batches += found
            return table_of(batches, self._positions.value_type())
        except BaseException:
            self._positions.take_back()
            raise

    def value_schema(self, topic: str) -> str | None:
        """The schema that the values of ``topic`` are read under, as JSON text with all that it
        refers to; None for a topic of plain bytes.

        Raises InvalidRequestError for a topic of which no partition is assigned, and as ``poll``.
        """
        return self._positions.value_schema(topic)

    def to_pandas(self, *, max_bytes: int | None = None) -> pd.DataFrame:
        """Returns what ``to_arrow`` does, as a DataFrame."""
        return self.to_arrow(max_bytes=max_bytes).to_pandas()

    def _needs_rebalance(self) -> bool:
        """Tells if the group is to share its partitions anew before anything more is handed out."""
        return self._subscription is not None and self._subscription.needs_rebalance

    def _rebalance(self, deadline: Deadline) -> bool:
        """Takes up what the group gives this consumer; False if that is not certain by the
        deadline."""
        if self._subscription is None:
            return True
        with self._calling_back():
            return self._subscription.rebalance(deadline)

    @contextmanager
    def _calling_back(self) -> Iterator[None]:
        """Marks a call of callbacks. Those that commit do so as the consumer does by itself: they
        are called by it, and say nothing of what the program has dealt with."""
        before, self._calls_back = self._calls_back, True
        try:
            yield
        finally:
            self._calls_back = before

    def _receive(self, deadline: Deadline) -> None:
        """Wait for records, until the deadline or until the group shares its partitions anew."""
        positions, subscription = self._positions, self._subscription
        if not positions and subscription is None:
            raise InvalidRequestError(
                "No partition is assigned to this consumer; subscribe or assign some."
            )
        while not positions.has_received and not self._needs_rebalance():
            if subscription is None or self._opened_group().connected:
                positions.find_positions()
            positions.request_more()
            until = deadline
            if subscription is not None and not self._fetcher.waits:
                until = self._cluster.deadline_ms(min(_SHARE_LOOK_MS, deadline.remaining_s * 1000))
            positions.receive(until)
            if deadline.expired:
                break
        positions.request_more()  # so that the leaders work while the caller does

    def __iter__(self) -> Iterator[ConsumerRecord[V]]:
        """The records as they come, for ever; waits for them as long as it takes."""
        while True:
            self._prepare_iteration()
            yield from self.records_at_hand()

    def records_at_hand(self) -> Iterator[ConsumerRecord[V]]:
        """Records for a loop, until there is more to do than to hand them out. Whoever calls this
        has looked at ``is_to_look``."""
        positions, iteration = self._positions, self._positions.iteration
        rows = iteration.rows
        member = None if self._subscription is None else self._subscription.member
        positions.settle()
        positions.in_loop = True
        try:
            for record in rows:
                iteration.last = record
                yield record
                if iteration.rows is not rows or (
                    member is not None and elapsed() >= member.next_check_at
                ):
                    break
            else:
                positions.end_iteration()
        except GeneratorExit:
            raise
        except BaseException:
            iteration.begin_again()
            raise

    def __next__(self) -> ConsumerRecord[V]:
        """The next record; waits for one as long as it takes."""
        iteration = self._positions.iteration
        while True:
            if self.is_to_look() or iteration.batch is None:
                self._prepare_iteration()
            record = self._positions.next_record()
            if record is not None:
                return record
            self._positions.end_iteration()

    def next_at_hand(self) -> ConsumerRecord[V] | None:
        """The next record if it can be had without waiting for anything; else None."""
        return None if self.is_to_look() else self._positions.next_record()

    def keep_last(self) -> None:
        """Count the record that was handed out last as dealt with when more are asked for, or when
        it is committed, but not when the consumer is closed."""
        self._positions.in_loop = True

    def take_back(self) -> None:
        """Hand out once more what the last call of ``poll``, ``poll_arrow`` or ``to_arrow`` has
        brought, as the caller has not received it."""
        self._positions.take_back()

    def is_to_look(self) -> bool:
        """Tells if there is more to do than to hand out the next record at hand."""
        return self._subscription is not None and (
            self._subscription.needs_rebalance or elapsed() >= self._commit_due
        )

    def _prepare_iteration(self, deadline: Deadline | None = None) -> bool:
        """Return when there is something to hand out, and it may be; False if that is not so by
        the deadline, None being never."""
        positions = self._positions
        while True:
            self._begin_call()
            patience = deadline or self._cluster.deadline_ms(_ITERATION_POLL_S * 1000)
            if self._rebalance(patience):
                if positions.iteration.batch is not None:
                    return True
                if not positions.has_received:
                    self._receive(patience)
                if positions.has_received and not self._needs_rebalance():
                    positions.begin_iteration()
                    continue
            if deadline is not None and deadline.expired:
                return False

    # -- the group ------------------------------------------------------------------------

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Store the positions (or ``offsets``, each the next to read) for the group. In a callback
        of ``subscribe``, those of what is dealt with.

        GroupRewoundError when the group was rewound since this consumer read its offsets; then
        ``resume_from_committed`` goes where the rewind says. TopicRecreatedError, and nothing is
        stored, when a topic was deleted and created again since its position was found.
        GroupHeldError, with the holder's name, while a query or a load holds the group.
        Needs ZooKeeper, and no broker.
        """
        found = self._positions
        positions = found.settled_positions() if self._calls_back else found.positions()
        if offsets is None:
            offsets = {each: at.offset for each, at in positions.items()}
        known = {each: positions[each].topic_id for each in offsets if each in positions}
        try:
            self._opened_group().commit_offsets(offsets, known)
        except BaseException:
            self._failed_commits += 1
            raise
        self._commits += 1
        found.settle_to(offsets)

    def committed(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The group's committed offsets; partitions without one are left out."""
        return self._opened_group().committed_offsets(list(topic_partitions))

    def resume_from_committed(self) -> None:
        """Forget the positions and take up the group's committed offsets, rewinds included."""
        self._opened_group().follow_rewinds()
        self._positions.forget_positions()

    def _schedule_commit(self) -> None:
        every_ms = self._config.auto_commit_ms
        self._commit_due = math.inf
        if self._subscription is not None and every_ms is not None:
            self._commit_due = elapsed() + every_ms / 1000
            self._subscription.member.commit_at(self._commit_due)

    def _begin_call(self) -> None:
        """Counts what was handed out before as dealt with, as the next is asked for."""
        if self._closed:
            raise InvalidRequestError("This consumer is closed; make another one.")
        self._positions.settle()
        if self._subscription is not None and elapsed() >= self._commit_due:
            self._schedule_commit()
            self._commit_handed_out(self.assignment)

    def _commit_revoked(self, partitions: Collection[TopicPartition]) -> None:
        if self._config.auto_commit_ms is not None:
            self._commit_handed_out(partitions)

    def _commit_handed_out(self, partitions: Iterable[TopicPartition]) -> None:
        """Commit positions that have moved, of what is dealt with, by itself: a failure is no
        concern of who reads, and a ZooKeeper that is away is not waited for."""
        if not self._opened_group().connected:
            return
        positions = self._positions.settled_positions()
        moved = {
            each: positions[each]
            for each in partitions
            if each in positions and self._auto_committed.get(each) != positions[each]
        }
        if not moved:
            return
        try:
            self.commit({each: at.offset for each, at in moved.items()})
        except GroupRewoundError as rewound:
            logger.warning("%s This consumer goes on from there.", rewound.message)
            self.resume_from_committed()
        except LogbusError as failure:
            logger.warning("Positions were not committed: %s", failure)
        else:
            self._auto_committed.update(moved)

    def _opened_group(self) -> ConsumerGroup:
        if self._config.group is None:
            raise ConfigError("This consumer has no group; set group in its ConsumerConfig.")
        if self._group is None:
            # Imported here: most users of this package never talk to ZooKeeper.
            from spark_logbus.client.consumer.group.group import ConsumerGroup

            client_id = self._cluster.config.client_id
            self._group = ConsumerGroup(
                self._config.zookeeper or self._cluster.zookeeper,
                self._config.group,
                client_id=client_id,
                session_timeout_ms=self._config.session_timeout_ms,
            )
        return self._group

    # -- what is known of it --------------------------------------------------------------

    @property
    def metrics_kind(self) -> ClientKind:
        """Kind of this client, for ``ClientCollector``."""
        return "consumer"

    def metrics(self) -> dict[str, int | float]:
        """The numbers of ``client.metrics.CONSUMER_METRICS`` by name. For any thread, at any time;
        waits for nothing."""
        return {
            **self._positions.metrics(),
            "commit_total": self._commits,
            "commit_error_total": self._failed_commits,
        }

    def __repr__(self) -> str:
        assigned = self.assignment
        topics = sorted({*self._subscribed} or {each.topic for each in assigned})
        parts = [
            f"at {self._cluster.address}",
            *([f"group {self._config.group!r}"] if self._config.group else []),
            f"topics {shortened(topics)}" if topics else "no topics",
            f"{len(assigned)} partition{'s' * (len(assigned) != 1)}",
            *(["closed"] if self._closed else []),
        ]
        return f"<{type(self).__name__} {', '.join(parts)}>"

    # -- the end --------------------------------------------------------------------------

    def close(self, *, failed: bool | None = None) -> None:
        """Stop reading, and leave the group. Without a subscription nothing is committed by itself.

        ``failed`` says that the caller has not dealt with what was handed out last, which then is
        not committed; None: it has, unless an exception is being handled, as in a ``finally``.
        """
        self._closed = True
        try:
            self.unsubscribe(failed=failed)
        finally:
            self._fetcher.close()
            if self._group is not None:
                self._group.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(failed=kind is not None)


def _in_flight() -> bool:
    """True while an exception is being handled. One that has nothing to do with the records looks
    the same: then they come again, and none is lost."""
    return sys.exc_info()[0] is not None
