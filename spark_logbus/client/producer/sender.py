"""The producer's thread: takes ready record batches, appends them to their leaders, settles them.

One loop over all leaders' sockets. Each turn seals what has lingered, fills one request per
leader that has room, and sleeps until a socket, the front, or a timer has something to do.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable, Sequence
from typing import Final

from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.client.cluster.silence import ANSWER_S
from spark_logbus.client.config import ProducerConfig
from spark_logbus.client.producer.accumulator import Accumulator
from spark_logbus.client.producer.batches import QueuedBatch
from spark_logbus.client.producer.completion import AppendedBatches, NextStep, append_outcomes
from spark_logbus.client.producer.failures import Failures
from spark_logbus.client.producer.interceptors import Interceptors
from spark_logbus.client.producer.leader_connections import InFlight, LeaderConnections, Link
from spark_logbus.client.producer.topic_queues import PartitionQueue, TopicQueues
from spark_logbus.client.writes.atomic_write import WriteIdentity
from spark_logbus.config import choice
from spark_logbus.errors import (
    LogbusError,
    NotLeaderError,
    ProducerClosedError,
    RequestTimeoutError,
)
from spark_logbus.model import Acks, Compression, TopicPartition
from spark_logbus.protocol import (
    Api,
    AppendPartition,
    AppendRequest,
    AppendResponse,
    StageRequest,
)
from spark_logbus.wire.poller import Poller

logger = logging.getLogger(__name__)

_REQUEST_HEAD_ROOM: Final = 64 << 10  # for the header of an append request
_LONGEST_SLEEP_S: Final = 5.0
# A request of a partition follows one that is not answered yet when so much is ready, or after so
# long. A broker that is near has answered by then, and one request for many small record batches
# costs both sides less than many requests.
_WORTH_A_REQUEST_BYTES: Final = 256 << 10
_PACE_S: Final = 0.001
# Between two looks at all leaders of a topic, some of which are away: there may be a thousand.
_LOOK_AROUND_S: Final = 0.05
# Records that wait for so long are worth a word to whoever runs the program; then so often.
_SAY_AFTER_S: Final = 10.0
_SAY_AGAIN_S: Final = 60.0
_LOOK_AT_WAITING_S: Final = 0.5


# Of one partition, what one request carries.
Part = tuple[PartitionQueue, list[QueuedBatch]]


class Sender:
    """Owns the sending thread. ``start`` and ``stop`` are thread-safe; the rest is its own."""

    def __init__(
        self,
        cluster: Cluster,
        config: ProducerConfig,
        accumulator: Accumulator,
        poller: Poller[Link],
        *,
        interceptors: Interceptors,
        failures: Failures,
        staging: bool = False,
        stage_for: WriteIdentity | None = None,
    ) -> None:
        """Takes ``staging`` where record batches are staged, not appended: the identity of the
        write that they are part of."""
        self._cluster = cluster
        self._config = config
        self._accumulator = accumulator
        self._failures = failures
        self._say_at = 0.0
        self._sent_bytes = 0
        self._links = LeaderConnections(cluster, wake=poller.wake)
        self._poller = poller
        self._away: set[PartitionQueue] = set()  # whose leader cannot be reached
        self._look_around_at = 0.0
        self._interceptors = interceptors
        self._api = Api.STAGE if staging else Api.APPEND
        self._writer = "" if stage_for is None else stage_for.writer
        self._run_of_writer = "" if stage_for is None else stage_for.run
        self._acks = None if config.acks is None else choice(Acks, config.acks, key="acks")
        self._compression = choice(Compression, config.compression, key="compression")
        self._acknowledged = staging or self._acks is not Acks.NONE
        self._stopping = False
        self.stopped = False
        self._thread = threading.Thread(target=self._run, name="logbus-producer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_this_thread(self) -> bool:
        """True in a callback."""
        return threading.current_thread() is self._thread

    def stop(self, timeout_s: float) -> bool:
        """End the thread; what is not acknowledged by then fails with ProducerClosedError. False if
        it has not ended within ``timeout_s``."""
        self._stopping = True
        self._poller.wake()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def metrics(self) -> dict[str, int | float]:
        """Returns the counters, for any thread; see ``client.metrics``."""
        return {
            "record_acknowledged_total": self._accumulator.acknowledged,
            "record_error_total": self._accumulator.failed,
            "record_retry_total": self._accumulator.retried,
            "outgoing_byte_total": self._sent_bytes,
        }

    # -- the loop -------------------------------------------------------------------------

    def _run(self) -> None:
        reason: LogbusError = ProducerClosedError(
            "The producer stopped before this record was acknowledged; it may or may not be there."
        )
        try:
            while not self._stopping:
                self._turn()
        except LogbusError as error:
            reason = error
            logger.exception("The producer stopped, because its sending thread failed.")
        finally:
            self._end(reason)

    def _turn(self) -> None:
        now = self._cluster.clock.monotonic()
        for link in self._links.adopt_connections(now):
            assert link.connection is not None
            self._poller.add(link.connection, link)
        for topic, unknown in self._links.adopt_lookups(now):
            self._accumulator.fail_topic(topic, unknown)
        self._accumulator.seal_lingering(now)
        self._accumulator.fail_expired(now, reason=self._reason_to_wait)
        self._failures.say(now)
        self._say_what_waits(now)
        self._time_out(now)
        self._reroute_keyless(now)
        self._fill_requests(now)
        for link in self._poller.wait(self._sleep_s(now)):
            self._progress(link)

    def _sleep_s(self, turn_began: float) -> float:
        events = [*self._accumulator.events(), *self._links.events()]
        # What was due when this turn began was done in it, or waits for a socket or a helper.
        # What has come due since was not seen by all of it.
        soonest = min((at for at in events if at > turn_began), default=math.inf)
        left_s = soonest - self._cluster.clock.monotonic()
        return min(max(0.0, left_s), _LONGEST_SLEEP_S)

    # -- leaders that are away ------------------------------------------------------------

    def _reroute_keyless(self, now: float) -> None:
        """Gives records without a key to partitions whose leaders can be reached."""
        waiting = [
            queue
            for queue in self._accumulator.ready_queues()
            if len(queue.topic_queues.queues) > 1
            and queue not in self._away
            and self._links.link_to_leader(queue.topic_partition, now) is None
        ]
        if not waiting and (not self._away or now < self._look_around_at):
            return
        self._look_around_at = now + _LOOK_AROUND_S
        for topic_queues in {queue.topic_queues: None for queue in [*self._away, *waiting]}:
            self._reroute_topic(topic_queues, now)

    def _reroute_topic(self, topic_queues: TopicQueues, now: float) -> None:
        """Reroutes one topic's records. While no leader of the topic can be reached there is
        nowhere to go, and records stay where they are, in their order."""
        there = {
            queue
            for queue in topic_queues.queues
            if self._links.link_to_leader(queue.topic_partition, now) is not None
        }
        if not there:
            return
        for queue in topic_queues.queues:
            if queue in there:
                if queue in self._away:
                    self._away.remove(queue)
                    self._accumulator.include(queue)
            elif self._links.unreachable_reason(queue.topic_partition) is not None:
                self._away.add(queue)
        self._accumulator.exclude([queue for queue in topic_queues.queues if queue in self._away])

    def _say_what_waits(self, now: float) -> None:
        """Log what has waited for long, before it fails; now and then."""
        if now < self._say_at:
            return
        self._say_at = now + _LOOK_AT_WAITING_S
        oldest = self._accumulator.oldest
        if oldest is None:
            return
        waited_s = now - oldest.opened_at - self._config.linger_ms / 1000
        if waited_s < min(_SAY_AFTER_S, self._config.delivery_timeout_ms / 2000):
            return
        self._say_at = now + _SAY_AGAIN_S
        reason = oldest.last_error or self._reason_to_wait(oldest.topic_partition)
        logger.warning(
            "Records for %s have waited for %.0f s, and %d bytes of all topics wait in this "
            "producer. They are sent as soon as that is possible, and fail in %.0f s "
            "(delivery_timeout_ms). The reason: %s",
            oldest.topic_partition,
            waited_s,
            self._accumulator.buffered_bytes,
            max(0.0, oldest.give_up_at - now),
            reason or "the broker has not answered yet.",
        )

    def _reason_to_wait(self, topic_partition: TopicPartition) -> LogbusError | None:
        return self._links.unreachable_reason(topic_partition) or self._links.last_error

    # -- requests -------------------------------------------------------------------------

    def _fill_requests(self, now: float) -> None:
        plans: dict[int, tuple[Link, list[Part], int]] = {}
        for queue in self._accumulator.ready_queues():
            if queue.not_before > now and not (
                queue.in_flight and queue.ready_bytes >= _WORTH_A_REQUEST_BYTES
            ):
                continue
            link = self._links.link_to_leader(queue.topic_partition, now)
            if link is None or len(link.in_flight) >= self._config.max_in_flight:
                continue
            if queue.in_flight and queue.sent_to is not link.connection:
                continue  # it may still arrive at the former leader
            _, parts, used = plans.get(id(link), (link, [], 0))
            taken = self._accumulator.take_batches(
                queue, max_bytes=self._request_bytes(link) - used, at_least_one=not used
            )
            if taken:
                queue.sent_to = link.connection
                queue.not_before = now + _PACE_S
                parts.append((queue, taken))
                used += sum(batch.size_bytes for batch in taken)
                plans[id(link)] = (link, parts, used)
        for link, parts, _ in plans.values():
            self._send(link, parts, now)

    def _request_bytes(self, link: Link) -> int:
        limit = link.connection.max_request_bytes if link.connection is not None else None
        room = (limit or self._config.max_request_bytes) - _REQUEST_HEAD_ROOM
        return min(self._config.max_request_bytes, room)

    def _send(self, link: Link, taken: Sequence[Part], now: float) -> None:
        assert link.connection is not None
        parts: list[Part] = []
        partitions: list[AppendPartition] = []
        payload: list[memoryview] = []
        for queue, batches in taken:
            data = self._encode(queue, batches)
            if data:
                topic, partition = queue.topic_partition.topic, queue.topic_partition.partition
                parts.append((queue, list(data)))
                partitions.append(
                    AppendPartition(topic, partition, sum(len(one) for one in data.values()))
                )
                payload.extend(data.values())
        if not parts:
            return
        timeout_ms = self._cluster.config.request_timeout_ms
        request: AppendRequest | StageRequest
        if self._api is Api.STAGE:
            request = StageRequest(timeout_ms, partitions, self._writer, self._run_of_writer)
        else:
            acks = self._acks or self._safest({each.topic for each in partitions})
            request = AppendRequest(acks.value, timeout_ms, partitions)
        try:
            pending = link.connection.send(self._api, request, payload, answered=self._acknowledged)
        except LogbusError as error:
            self._complete(parts, [error] * len(parts), now)
            if link.connection.failure is not None:
                self._link_down(link, link.connection.failure, now)
            return
        deadline = self._cluster.deadline_ms(self._cluster.config.request_timeout_ms)
        self._sent_bytes += sum(map(len, payload))
        link.in_flight.append(InFlight(pending, parts, deadline, ask_at=now + ANSWER_S))
        self._after_progress(link)

    def _safest(self, topics: Iterable[str]) -> Acks:
        """Returns what is asked for by default: for a topic's only replica ``replicated`` means
        the same as ``flushed``, which brokers of earlier releases know."""
        replicated = any(self._cluster.is_replicated(topic) for topic in topics)
        return Acks.REPLICATED if replicated else Acks.FLUSHED

    def _encode(
        self, queue: PartitionQueue, batches: Sequence[QueuedBatch]
    ) -> dict[QueuedBatch, memoryview]:
        """The bytes of ``batches``, numbered, without those that cannot be encoded: they fail."""
        data: dict[QueuedBatch, memoryview] = {}
        failed: list[tuple[QueuedBatch, LogbusError]] = []
        for batch in batches:
            try:
                data[batch] = batch.encoded(self._compression, self._interceptors)
            except LogbusError as error:
                failed.append((batch, error))
        if failed:
            self._accumulator.fail_unsent(queue, failed, ends_request=not data)
        if data and queue.sequences is not None:
            queue.sequences.number(list(data), behind=queue.in_flight > 1)
        return data

    # -- responses ------------------------------------------------------------------------

    def _progress(self, link: Link) -> None:
        if link.connection is not None:
            link.connection.progress()
            self._after_progress(link)

    def _after_progress(self, link: Link) -> None:
        connection = link.connection
        assert connection is not None
        now = self._cluster.clock.monotonic()
        while link.in_flight and link.in_flight[0].pending.done and not connection.failure:
            self._answered(link, link.in_flight.popleft(), now)
        if connection.failure is not None:
            self._link_down(link, connection.failure, now)
            return
        self._poller.update(connection)

    def _time_out(self, now: float) -> None:
        for link in self._links:
            if self._links.is_replaced(link, now):
                silent = f"{link.address} has not answered an append, and leads no more."
                self._link_down(link, RequestTimeoutError(silent), now)
            elif link.in_flight and link.in_flight[0].deadline.at <= now:
                self._link_down(
                    link,
                    RequestTimeoutError(
                        f"{link.address} did not answer an append within "
                        f"{self._cluster.config.request_timeout_ms} ms."
                    ),
                    now,
                )

    def _link_down(self, link: Link, error: LogbusError, now: float) -> None:
        if link.connection is not None:
            self._poller.remove(link)
        for lost in self._links.take_down(link, error, now):
            if lost.pending.done and lost.pending.error is None:
                self._answered(link, lost, now)
            else:
                self._complete(lost.parts, [error] * len(lost.parts), now)

    def _answered(self, link: Link, done: InFlight, now: float) -> None:
        outcomes: Sequence[AppendedBatches | LogbusError]
        if done.pending.error is not None:
            outcomes = [done.pending.error] * len(done.parts)
        elif not self._acknowledged:
            outcomes = [AppendedBatches([None] * len(batches)) for _, batches in done.parts]
        else:
            try:
                results = done.pending.result(AppendResponse, done.deadline).results
                outcomes = append_outcomes(results, done.parts, link.address)
            except LogbusError as error:
                outcomes = [error] * len(done.parts)
        self._complete(done.parts, outcomes, now)
        for (queue, _), outcome in zip(done.parts, outcomes, strict=True):
            if isinstance(outcome, NotLeaderError):
                self._links.refused(queue.topic_partition, link, now)

    def _complete(
        self, parts: Sequence[Part], outcomes: Sequence[AppendedBatches | LogbusError], now: float
    ) -> None:
        for (queue, batches), outcome in zip(parts, outcomes, strict=True):
            step = self._accumulator.complete(queue, batches, outcome, now=now)
            if step is NextStep.RETRY:
                self._cluster.invalidate(queue.topic_partition.topic)
            elif step is NextStep.RENUMBER:
                logger.warning(
                    "%s is numbered anew and sent again: %s", queue.topic_partition, outcome
                )

    def _end(self, reason: LogbusError) -> None:
        self.stopped = True
        self._accumulator.close()
        self._links.close()
        self._poller.close()
        self._accumulator.abort(reason)
