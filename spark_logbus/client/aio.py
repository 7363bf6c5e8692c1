"""Producer and consumer for asyncio: the same ones, with everything that waits done in a thread.

``await producer.send(...)`` and ``async for record in consumer``. Nothing here waits on the event
loop: a call that only puts a record into memory is made at once, all others in a thread of the
producer's or the consumer's own.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeVar, cast

from spark_logbus.client.arguments import as_timeout_ms, names_keywords
from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.client.config import ConsumerConfig, ProducerConfig
from spark_logbus.client.consumer.consumer import Consumer
from spark_logbus.client.fetch.records import ConsumerRecord, V
from spark_logbus.client.helper_threads import HelperThreads
from spark_logbus.client.producer.acknowledgements import (
    AppendedRange,
    RangeFuture,
    RecordMetadata,
)
from spark_logbus.client.producer.producer import Producer
from spark_logbus.errors import InvalidRequestError
from spark_logbus.model import OffsetSpec, TopicPartition

if TYPE_CHECKING:
    import re

    import pandas as pd
    import pyarrow as pa

    from spark_logbus.client.fetch.batches import FetchedBatch
    from spark_logbus.client.metrics import ClientKind

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_POLL_S: Final = 1.0  # a poll that was begun cannot be broken off, so closing waits for it


class _Outcome(Protocol[T_co]):
    """The future of a record or a record batch."""

    def result(self, timeout: float | None = None) -> T_co: ...

    def when_done(self, callback: Callable[[Any], object]) -> None: ...


#: How a program that is asked to end leaves a block: an event loop cancels its tasks then.
_ENDS: Final = (asyncio.CancelledError, SystemExit, KeyboardInterrupt)


class AsyncProducer:
    """A ``Producer`` of its own for one event loop. The cluster is shared, not owned.

    Use it as ``async with``, which flushes at the end, and for at most 5 seconds where its task is
    cancelled, as by Ctrl-C. ``more`` is what else a ``Producer`` takes.
    """

    def __init__(self, cluster: Cluster, config: ProducerConfig | None = None, **more: Any) -> None:
        self._producer = Producer(cluster, config, **more)
        self._thread = HelperThreads(1, name="logbus-async-producer")
        self._handing_over = 0  # records that wait for the thread; of the event loop

    async def send(self, topic: str, value: Any, **more: Any) -> RecordMetadata:
        """Append one record, and wait until it is acknowledged. Takes and raises what
        ``Producer.send`` does. To have many under way, gather several."""
        future = await self._handed_over(topic, partial(self._producer.send, topic, value, **more))
        return await _settled(future)

    async def send_many(self, topic: str, values: Any, **more: Any) -> list[AppendedRange]:
        """Append many records, and wait until all are acknowledged: see ``Producer.send_many``."""
        return await self._all(partial(self._producer.send_many, topic, values, **more))

    async def send_arrow(self, topic: str, data: Any, **more: Any) -> list[AppendedRange]:
        """Append whole columns, and wait until all are acknowledged: see ``send_arrow`` of a
        ``Producer``."""
        return await self._all(partial(self._producer.send_arrow, topic, data, **more))

    async def _all(self, send: Callable[[], list[Future[AppendedRange]]]) -> list[AppendedRange]:
        futures = [cast(RangeFuture, future) for future in await self._run(send)]
        for future in futures:
            await _done(future.when_done)
        for future in futures:
            future.exception(0)  # the first one is raised for all of them
        return [future.result(0) for future in futures]

    async def _handed_over(self, topic: str, send: Callable[[], T]) -> T:
        """The result of ``send``, which waits for nothing if the topic is known and there is room;
        another thread of the program may take the room meanwhile, for which it would wait."""
        if not self._handing_over and self._producer.has_room(topic):
            return send()
        self._handing_over += 1  # what is sent after this must not overtake it
        try:
            return await self._run(send)
        finally:
            self._handing_over -= 1

    async def _run(self, call: Callable[[], T]) -> T:
        self._producer.require_own_process()  # before a thread is waited for, which is not there
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    @property
    def metrics_kind(self) -> ClientKind:
        """Kind of this client, for ``ClientCollector``."""
        return self._producer.metrics_kind

    def metrics(self) -> dict[str, int | float]:
        """Its counters: see ``Producer.metrics``. Waits for nothing."""
        return self._producer.metrics()

    def __repr__(self) -> str:
        return repr(self._producer).replace("Producer", type(self).__name__, 1)

    async def flush(self) -> None:
        await self._run(self._producer.flush)

    async def close(self) -> None:
        """Flush, then stop."""
        try:
            await self._run(self._producer.close)
        finally:
            self._thread.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ends_program = isinstance(error, _ENDS)
        try:
            await self._run(partial(self._producer.leave, error, ends_program=ends_program))
        finally:
            self._thread.shutdown(wait=False)


async def _settled(outcome: _Outcome[T]) -> T:
    """The result of a producer's future. Whoever is cancelled here has not heard of a failure."""
    await _done(outcome.when_done)
    return outcome.result(0)


async def _done(when_done: Callable[[Callable[[Any], object]], None]) -> None:
    """Wait for a future of another thread's, which calls what ``when_done`` is given."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not done.done():
            done.set_result(None)

    when_done(lambda _: _tell(loop, wake))
    await done


def _tell(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Have the loop make that call, from another thread."""
    with suppress(RuntimeError):  # the loop was closed: nobody waits any more
        loop.call_soon_threadsafe(call)


class AsyncConsumer(Generic[V]):
    """A ``Consumer`` of its own for one event loop. The cluster is shared, not owned.

    It has the methods of a ``Consumer``, which are awaited, and ``async for record in consumer``
    hands records out one by one and waits for more for ever. One task at a time may ask for
    records, while others commit, pause or seek; their calls wait for each other. What a task that
    was cancelled has asked for is handed out to the next.
    """

    def __init__(self, cluster: Cluster, config: ConsumerConfig | None = None) -> None:
        self._consumer: Consumer[V] = Consumer(cluster, config)
        self._thread = HelperThreads(1, name="logbus-async-consumer")
        # A call begins when the task of the one before it has its result, or has been cancelled:
        # else what was handed out to that task would be taken for what has reached nobody.
        self._turn = asyncio.Lock()
        self._under_way = 0  # calls in the thread: the consumer is not the event loop's meanwhile
        self._unclaimed = False  # what the last call handed out has not reached its task yet
        self._closed = False

    # -- what to read ---------------------------------------------------------------------

    async def subscribe(
        self, topics: str | Iterable[str] | re.Pattern[str], **callbacks: Any
    ) -> None:
        """See ``Consumer.subscribe``. Callbacks run in the consumer's thread."""
        await self._turn_to(partial(self._consumer.subscribe, topics, **callbacks))

    async def unsubscribe(self) -> None:
        """Leave the group, and read nothing: see ``Consumer.unsubscribe``."""
        await self._turn_to(self._consumer.unsubscribe)

    async def assign(self, topic_partitions: Iterable[TopicPartition]) -> None:
        await self._turn_to(partial(self._consumer.assign, topic_partitions))

    async def assign_topics(self, *topics: str) -> None:
        await self._turn_to(partial(self._consumer.assign_topics, *topics))

    @property
    def assignment(self) -> list[TopicPartition]:
        return self._consumer.assignment

    async def pause(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these until ``resume``: see ``Consumer.pause``."""
        await self._run(partial(self._consumer.pause, topic_partitions))

    async def resume(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Hand out records of these again."""
        await self._run(partial(self._consumer.resume, topic_partitions))

    @property
    def paused(self) -> list[TopicPartition]:
        return self._consumer.paused

    async def seek(self, topic_partition: TopicPartition, to: int | str | OffsetSpec) -> None:
        """Go on from there: see ``Consumer.seek``."""
        await self._run(partial(self._consumer.seek, topic_partition, to))

    async def position(self, topic_partition: TopicPartition) -> int:
        """The offset of the next record that this consumer hands out."""
        return await self._run(partial(self._consumer.position, topic_partition))

    # -- reading --------------------------------------------------------------------------

    @names_keywords
    async def poll(
        self, timeout_s: float = 1.0, *, max_records: int = 500
    ) -> list[ConsumerRecord[V]]:
        """Returns up to ``max_records`` records, as soon as there are some: see
        ``Consumer.poll``."""
        return await self._polled(
            timeout_s, lambda for_s: self._consumer.poll(for_s, max_records=max_records)
        )

    @names_keywords
    async def poll_arrow(self, timeout_s: float = 1.0) -> list[FetchedBatch]:
        """Whole arrow batches, as soon as there are some: see ``Consumer.poll_arrow``."""
        return await self._polled(timeout_s, self._consumer.poll_arrow)

    async def to_arrow(self, *, max_bytes: int | None = None) -> pa.Table:
        """Returns all that there is from the positions on: see ``Consumer.to_arrow``."""
        return await self._received(partial(self._consumer.to_arrow, max_bytes=max_bytes))

    async def to_pandas(self, *, max_bytes: int | None = None) -> pd.DataFrame:
        """Returns the same as a DataFrame."""
        return await self._received(partial(self._consumer.to_pandas, max_bytes=max_bytes))

    async def value_schema(self, topic: str) -> str | None:
        """The schema that the values of ``topic`` are read under: see ``Consumer.value_schema``."""
        return await self._run(partial(self._consumer.value_schema, topic))

    @property
    def dropped_records(self) -> int:
        """The number of records that were left out so far, as their values do not decode."""
        return self._consumer.dropped_records

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord[V]]:
        while True:
            if self._is_at_rest and not self._consumer.is_to_look():
                for record in self._consumer.records_at_hand():
                    yield record
                    if self._under_way or self._unclaimed:
                        break
            for record in await self._poll_one():
                self._consumer.keep_last()
                yield record

    async def __anext__(self) -> ConsumerRecord[V]:
        """The next record; waits for one as long as it takes."""
        while True:
            record = self._consumer.next_at_hand() if self._is_at_rest else None
            if record is not None:
                return record
            for record in await self._poll_one():
                return record

    @property
    def _is_at_rest(self) -> bool:
        """The thread does nothing with the consumer, so that the event loop may ask it."""
        return not (self._under_way or self._unclaimed)

    async def _poll_one(self) -> list[ConsumerRecord[V]]:
        """The next record, or none after a while; those behind it are at hand then."""
        return await self._received(partial(self._consumer.poll, _POLL_S, max_records=1))

    # -- the group ------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Store the positions behind what was handed out: see ``Consumer.commit``."""
        await self._run(partial(self._consumer.commit, offsets))

    async def committed(
        self, topic_partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The group's committed offsets; partitions without one are left out."""
        return await self._run(partial(self._consumer.committed, topic_partitions))

    async def resume_from_committed(self) -> None:
        """Forget the positions and take up the group's committed offsets, rewinds included."""
        await self._run(self._consumer.resume_from_committed)

    # -- what is known of it --------------------------------------------------------------

    @property
    def metrics_kind(self) -> ClientKind:
        """Kind of this client, for ``ClientCollector``."""
        return self._consumer.metrics_kind

    def metrics(self) -> dict[str, int | float]:
        """Its counters: see ``Consumer.metrics``. Waits for nothing."""
        return self._consumer.metrics()

    def __repr__(self) -> str:
        return repr(self._consumer).replace("Consumer", type(self).__name__, 1)

    # -- in the thread --------------------------------------------------------------------

    async def _polled(self, timeout_s: float, poll: Callable[[float], list[T]]) -> list[T]:
        """Returns what ``poll`` brings. It waits for a while at a time, so that a task that is
        cancelled holds up nobody for long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + as_timeout_ms(timeout_s) / 1000
        while True:
            left_s = max(0.0, until - loop.time())
            found = await self._received(partial(poll, min(left_s, _POLL_S)))
            if found or left_s <= _POLL_S:
                return found

    async def _received(self, call: Callable[[], T]) -> T:
        """The result of a call that hands records out. If the task is cancelled before it has them,
        the next call hands them out again."""
        async with self._turn:
            found = await asyncio.wrap_future(self._begin(call, hands_out=True))
            self._unclaimed = False
        return found

    async def _run(self, call: Callable[[], T]) -> T:
        async with self._turn:
            return await asyncio.wrap_future(self._begin(call))

    async def _turn_to(self, call: Callable[[], None]) -> None:
        """A call by which the consumer leaves what it has read so far."""
        if _in_flight():
            await self._run(partial(self._consumer.unsubscribe, failed=True))
        await self._run(call)

    def _begin(self, call: Callable[[], T], *, hands_out: bool = False) -> Future[T]:
        if self._closed:
            raise InvalidRequestError("This consumer is closed; make another one.")
        loop = asyncio.get_running_loop()
        begun = self._thread.submit(self._call, call, hands_out)
        self._under_way += 1
        begun.add_done_callback(lambda _: _tell(loop, self._ended))
        return begun

    def _ended(self) -> None:
        self._under_way -= 1

    def _call(self, call: Callable[[], T], hands_out: bool) -> T:
        """Runs the call in the thread, one after the other."""
        if self._unclaimed:
            self._unclaimed = False
            self._consumer.take_back()
        found = call()
        self._unclaimed = hands_out
        return found

    # -- the end --------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop reading, and leave the group. What was handed out counts as dealt with, unless an
        exception is being handled: see ``Consumer.close``."""
        await self._close(failed=_in_flight())

    async def _close(self, *, failed: bool) -> None:
        if self._closed:
            return
        closing = self._begin(partial(self._consumer.close, failed=failed))
        self._closed = True
        self._thread.shutdown(wait=False)
        await asyncio.wrap_future(closing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close(failed=kind is not None)


def _in_flight() -> bool:
    """True while the task that asks handles an exception."""
    return sys.exc_info()[0] is not None
