"""Producer and consumer for asyncio: the same ones, with everything that waits done in a thread.

``await producer.send(...)`` and ``async for record in consumer``. Nothing here waits on the event
loop: a call that only puts a record into memory is made at once, all others in a thread of the
producer's or the consumer's own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar, cast

from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.client.config import ConsumerConfig, ProducerConfig
from spark_logbus.client.consumer.consumer import Consumer
from spark_logbus.client.fetch.records import ConsumerRecord, records_of
from spark_logbus.client.producer.acknowledgements import (
    AppendedRange,
    RangeFuture,
    RecordMetadata,
)
from spark_logbus.client.producer.producer import Producer
from spark_logbus.model import OffsetSpec, TopicPartition

if TYPE_CHECKING:
    import re

    from spark_logbus.client.fetch.batches import FetchedBatch

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_POLL_S: Final = 1.0  # a poll that was begun cannot be broken off, so closing waits for it


class _Outcome(Protocol[T_co]):
    """The future of a record or a record batch."""

    def result(self, timeout: float | None = None) -> T_co: ...

    def when_done(self, callback: Callable[[Any], object]) -> None: ...


class AsyncProducer:
    """A ``Producer`` of its own for one event loop. The cluster is shared, not owned.

    Use it as ``async with``, which flushes at the end. ``more`` is what else a ``Producer`` takes.
    """

    def __init__(self, cluster: Cluster, config: ProducerConfig | None = None, **more: Any) -> None:
        self._producer = Producer(cluster, config, **more)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="logbus-async-producer")

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
        return send() if self._producer.has_room(topic) else await self._run(send)

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

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
        try:
            await self._run(partial(self._producer.__exit__, kind, error, trace))
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

    def tell(_: object) -> None:
        try:
            loop.call_soon_threadsafe(wake)
        except RuntimeError:  # the loop was closed: nobody waits any more
            return

    when_done(tell)
    await done


class AsyncConsumer:
    """A ``Consumer`` of its own for one event loop. The cluster is shared, not owned.

    ``async for record in consumer`` hands records out one by one and waits for more for ever. One
    task at a time may ask for records. What a task that was cancelled has asked for is handed out
    to the next.
    """

    def __init__(self, cluster: Cluster, config: ConsumerConfig | None = None) -> None:
        self._consumer = Consumer(cluster, config)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="logbus-async-consumer")
        self._records: deque[ConsumerRecord] = deque()
        self._polling: Future[list[FetchedBatch]] | None = None

    async def subscribe(
        self, topics: str | Iterable[str] | re.Pattern[str], **callbacks: Any
    ) -> None:
        """See ``Consumer.subscribe``. Callbacks run in the consumer's thread."""
        await self._run(partial(self._consumer.subscribe, topics, **callbacks))

    async def assign(self, topic_partitions: Iterable[TopicPartition]) -> None:
        await self._run(partial(self._consumer.assign, topic_partitions))

    async def assign_topics(self, *topics: str) -> None:
        await self._run(partial(self._consumer.assign_topics, *topics))

    async def seek(self, topic_partition: TopicPartition, to: int | str | OffsetSpec) -> None:
        """Records of the partition that were received and not handed out are dropped."""
        await self._take_polled()
        self._forget(topic_partition)
        await self._run(partial(self._consumer.seek, topic_partition, to))

    def _forget(self, topic_partition: TopicPartition) -> None:
        self._records = deque(
            record
            for record in self._records
            if TopicPartition(record.topic, record.partition) != topic_partition
        )

    @property
    def assignment(self) -> list[TopicPartition]:
        return self._consumer.assignment

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Store the positions behind what was handed out: see ``Consumer.commit``."""
        await self._run(partial(self._commit, offsets, list(self._records)))

    def _commit(
        self, offsets: Mapping[TopicPartition, int] | None, waiting: list[ConsumerRecord]
    ) -> None:
        if offsets is None and waiting:
            positions = {at: self._consumer.position(at) for at in self._consumer.assignment}
            for record in reversed(waiting):  # ends with the first of each partition
                at = TopicPartition(record.topic, record.partition)
                if at in positions:
                    positions[at] = record.offset
            offsets = positions
        self._consumer.commit(offsets)

    async def poll_arrow(self, timeout_s: float = 1.0) -> list[FetchedBatch]:
        """See ``Consumer.poll_arrow``. Not to be mixed with iteration, of which some records may
        wait here."""
        return await self._run(partial(self._consumer.poll_arrow, timeout_s))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        while not self._records:
            await self._poll()
        return self._records.popleft()

    async def _poll(self) -> None:
        if self._polling is None:
            self._polling = self._thread.submit(self._consumer.poll_arrow, _POLL_S)
        await self._take_polled()

    async def _take_polled(self) -> None:
        """What a poll has brought that was begun here, perhaps by a task that is gone."""
        polling = self._polling
        if polling is not None:
            await _done(polling.add_done_callback)  # who is cancelled here leaves it to the next
            self._polling = None
            for batch in polling.result(0):
                self._records.extend(records_of(batch))

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def close(self) -> None:
        """Stop reading, and leave the group."""
        try:
            await self._run(self._consumer.close)
        finally:
            self._thread.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
