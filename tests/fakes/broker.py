"""A small broker in memory that does what it is told to do wrong.

It speaks the real protocol over real sockets, so that the clients meet real connections; its
partitions are lists. Faults are queued per API and used up one per request.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal

from spark_logbus.client import Bootstrap
from spark_logbus.errors import (
    LogbusError,
    NotLeaderError,
    OffsetOutOfRangeError,
    TopicExistsError,
    UnknownTopicError,
)
from spark_logbus.log.producers.states import ProducerStateManager
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.protocol import (
    Api,
    AppendRequest,
    AppendResponse,
    AppendResult,
    BrokerInfo,
    CreateTopicRequest,
    CreateTopicResponse,
    DeleteTopicRequest,
    DeleteTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
    Frame,
    FrameLimits,
    FrameReader,
    HandshakeResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResult,
    Message,
    MetadataRequest,
    MetadataResponse,
    PartitionEnds,
    PartitionInfo,
    SplitRangeRequest,
    SplitRangeResponse,
    SplitRangeResult,
    TopicInfo,
    decode_request,
    encode_error,
    encode_response,
    error_info,
    frame_head,
)
from spark_logbus.record import RecordBatchHeader, split, stamp, verify

MAX_RECORD_BATCH_BYTES = 1 << 20

FaultKind = Literal["drop_before", "drop_after", "half", "hang", "error", "partition_error"]


@dataclass
class Fault:
    """``drop_before``: close unread work; ``drop_after``: do it, then close without an answer;
    ``half``: answer half; ``hang``: wait for ``release``, then answer; the others report.
    ``is_held``: of whatever kind, the answer waits for ``release``."""

    kind: FaultKind
    error: LogbusError | None = None
    release: threading.Event = field(default_factory=threading.Event)
    met: threading.Event = field(default_factory=threading.Event)
    is_held: bool = False


@dataclass
class FakePartition:
    leader: int
    epoch: int = 0
    start: int = 0
    batches: list[tuple[RecordBatchHeader, bytes]] = field(default_factory=list)
    producers: ProducerStateManager = field(
        default_factory=lambda: ProducerStateManager(TopicPartition("fake", 0))
    )
    lost: list[tuple[int, int]] = field(default_factory=list)
    #: High watermarks of followers, by broker, where there are any; those in sync can be read from.
    followers: dict[int, int] = field(default_factory=dict)
    in_sync: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.batches[-1][0].next_offset if self.batches else self.start


@dataclass
class FakeTopic:
    topic_id: str
    config: dict[str, str]
    partitions: dict[int, FakePartition]


class FakeCluster:
    """Topics that several fake brokers share."""

    def __init__(self, brokers: int = 1) -> None:
        self.lock = threading.Condition()
        self.topics: dict[str, FakeTopic] = {}
        self.brokers = [FakeBroker(self, number) for number in range(1, brokers + 1)]

    def __enter__(self) -> FakeCluster:
        for broker in self.brokers:
            broker.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for broker in self.brokers:
            broker.stop()

    @property
    def bootstrap(self) -> Bootstrap:
        return Bootstrap(tuple(broker.address for broker in self.brokers if broker.up))

    def create(
        self, name: str, *, partitions: int = 1, config: dict[str, str] | None = None
    ) -> None:
        ids = [broker.broker_id for broker in self.brokers]
        parts = {number: FakePartition(ids[number % len(ids)]) for number in range(partitions)}
        with self.lock:
            self.topics[name] = FakeTopic(f"id-{name}", config or {}, parts)

    def hand_over(self, topic_partition: TopicPartition, to: int) -> None:
        """Make another broker the leader, in a new epoch."""
        with self.lock:
            part = self.partition(topic_partition)
            part.leader, part.epoch = to, part.epoch + 1
            self.lock.notify_all()

    def partition(self, topic_partition: TopicPartition) -> FakePartition:
        return self.topics[topic_partition.topic].partitions[topic_partition.partition]

    def append(self, topic_partition: TopicPartition, data: bytes | memoryview) -> int:
        """Append whole record batches; the base offset of the first."""
        return self.append_all(topic_partition, data)[0]

    def append_all(self, topic_partition: TopicPartition, data: bytes | memoryview) -> list[int]:
        """Append what is not there yet; the base offset of each record batch."""
        part = self.partition(topic_partition)
        batches = [(header, bytearray(view)) for header, view in split(data, allow_tail=False)]
        with self.lock:
            offsets = part.producers.duplicate_offsets([header for header, _ in batches])
            for header, own in batches[len(offsets) :]:
                offset = part.end
                stamp(own, base_offset=offset, leader_epoch=part.epoch, append_time_us=1)
                part.batches.append((verify(own), bytes(own)))
                part.producers.note(header, offset=offset, append_time_us=1)
                offsets.append(offset)
            self.lock.notify_all()
        return offsets


class FakeBroker:
    def __init__(self, cluster: FakeCluster, broker_id: int) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.faults: defaultdict[Api, deque[Fault]] = defaultdict(deque)
        self._all_faults: list[Fault] = []
        self.requests: list[Message] = []
        self.connections = 0
        self.hears_of_topics = True
        #: What it says of topics, while it hears of no changes.
        self.heard: dict[str, FakeTopic] | None = None
        self.up = False
        self.rack: str | None = None
        self.address = BrokerAddress(broker_id, "127.0.0.1", 0)
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket | None = None

    def start(self) -> None:
        """Listen on a free port: another one after each stop."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = BrokerAddress(self.broker_id, "127.0.0.1", self._listener.getsockname()[1])
        self.up = True
        thread = threading.Thread(target=self._accept, args=(self._listener,), daemon=True)
        thread.start()
        self._threads.append(thread)

    def stop(self) -> None:
        if not self.up:
            return
        self.up = False
        for fault in self._all_faults:
            fault.release.set()
        assert self._listener is not None
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop_connections()
        with self.cluster.lock:
            self.cluster.lock.notify_all()
        for thread in self._threads:
            thread.join(60)
        self._threads.clear()

    def stop_hearing(self) -> None:
        """Know no leaders from now on but those of this moment."""
        self.heard = {
            name: FakeTopic(
                topic.topic_id,
                dict(topic.config),
                {
                    n: FakePartition(
                        part.leader,
                        part.epoch,
                        followers=dict(part.followers),
                        in_sync=list(part.in_sync),
                    )
                    for n, part in topic.partitions.items()
                },
            )
            for name, topic in self.cluster.topics.items()
        }

    def drop_connections(self) -> None:
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def fault(self, api: Api, kind: FaultKind, error: LogbusError | None = None) -> Fault:
        fault = Fault(kind, error)
        self.faults[api].append(fault)
        self._all_faults.append(fault)
        return fault

    # -- connections ----------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.add(sock)
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve(self, sock: socket.socket) -> None:
        reader = FrameReader(FrameLimits(64 << 20))
        try:
            while self.up:
                received = sock.recv_into(reader.buffer())
                if received == 0:
                    return
                frame = reader.advance(received)
                if frame is not None and not self._handle(sock, frame):
                    return
        except OSError:
            return
        finally:
            self._open.discard(sock)
            sock.close()

    def _handle(self, sock: socket.socket, frame: Frame) -> bool:
        api = Api(frame.api)
        message = decode_request(api, frame.header)
        self.requests.append(message)
        fault = self.faults[api].popleft() if self.faults[api] else None
        if fault is not None:
            fault.met.set()
            if fault.kind == "drop_before":
                return False
        try:
            if fault is not None and fault.kind == "error" and fault.error is not None:
                raise fault.error
            partition_fault = fault.error if fault and fault.kind == "partition_error" else None
            response, payload = self._answer(message, frame.payload, partition_fault)
            header = encode_response(response)
        except LogbusError as error:
            header, payload = encode_error(error), b""
        if fault is not None and fault.kind == "drop_after":
            return False
        if fault is not None and (fault.is_held or fault.kind == "hang"):
            fault.release.wait(60)
        if isinstance(message, AppendRequest) and message.acks == "none":
            return True
        data = (
            frame_head(
                api=frame.api,
                version=frame.version,
                correlation=frame.correlation,
                header=header,
                payload_length=len(payload),
            )
            + payload
        )
        if fault is not None and fault.kind == "half":
            sock.sendall(data[: len(data) // 2])
            return False
        sock.sendall(data)
        return True

    # -- answers --------------------------------------------------------------------------

    def _answer(
        self, message: Message, payload: memoryview, fault: LogbusError | None
    ) -> tuple[Message, bytes]:
        if isinstance(message, AppendRequest):
            return AppendResponse(list(self._appends(message, payload, fault))), b""
        if isinstance(message, FetchRequest):
            return self._fetch(message, fault)
        answers: dict[type[Message], Callable[..., Message]] = {
            MetadataRequest: self._metadata,
            ListOffsetsRequest: self._list_offsets,
            SplitRangeRequest: self._split,
            CreateTopicRequest: self._create,
            DeleteTopicRequest: self._delete,
        }
        if type(message) in answers:
            return answers[type(message)](message), b""
        return HandshakeResponse(self.broker_id, 1, 64 << 20, MAX_RECORD_BATCH_BYTES), b""

    def _led(self, topic: str, partition: int) -> FakePartition:
        known = self.cluster.topics.get(topic)
        part = known.partitions.get(partition) if known else None
        if part is None:
            raise UnknownTopicError(f"Broker {self.broker_id} has no {topic}-{partition}.")
        if part.leader != self.broker_id:
            raise NotLeaderError(f"Broker {self.broker_id} does not lead {topic}-{partition}.")
        return part

    def _read(self, topic: str, partition: int, *, replica: bool) -> FakePartition:
        """A partition that may be read here."""
        part = self.cluster.topics[topic].partitions.get(partition) if replica else None
        if (
            part is not None
            and self.broker_id != part.leader
            and self.broker_id in part.in_sync
            and self.broker_id in part.followers
        ):
            return part
        return self._led(topic, partition)

    def _appends(
        self, message: AppendRequest, payload: memoryview, fault: LogbusError | None
    ) -> Iterator[AppendResult]:
        at = 0
        for asked in message.partitions:
            data = payload[at : at + asked.length]
            at += asked.length
            try:
                if fault is not None:
                    raise fault
                self._led(asked.topic, asked.partition)
                topic_partition = TopicPartition(asked.topic, asked.partition)
                offsets = self.cluster.append_all(topic_partition, data)
                yield AppendResult(
                    asked.topic, asked.partition, offsets[0], 1, base_offsets=offsets
                )
            except LogbusError as error:
                yield AppendResult(asked.topic, asked.partition, error=error_info(error))

    def _fetch(
        self, message: FetchRequest, fault: LogbusError | None
    ) -> tuple[FetchResponse, bytes]:
        lock = self.cluster.lock
        with lock:
            results = self._fetch_now(message, fault)
            if not any(data or result.error for result, data in results):
                lock.wait_for(
                    lambda: (
                        not self.up or any(d or r.error for r, d in self._fetch_now(message, fault))
                    ),
                    message.max_wait_ms / 1000,
                )
                results = self._fetch_now(message, fault)
        return FetchResponse([r for r, _ in results]), b"".join(d for _, d in results)

    def _fetch_now(
        self, message: FetchRequest, fault: LogbusError | None
    ) -> list[tuple[FetchResult, bytes]]:
        results = []
        room = message.max_bytes
        for asked in message.partitions:
            try:
                if fault is not None:
                    raise fault
                part = self._read(asked.topic, asked.partition, replica=message.replica)
                if asked.topic_id not in (None, self.cluster.topics[asked.topic].topic_id):
                    raise UnknownTopicError(f"{asked.topic} is another one now.")
                end = part.followers.get(self.broker_id, part.end)
                data = _slice(part, asked, min(room, asked.max_bytes), end=end)
                if len(data) > room < message.max_bytes:
                    data = b""  # its turn comes next time
                room = max(0, room - len(data))
                result = FetchResult(
                    asked.topic, asked.partition, len(data), part.start, end, lost=part.lost
                )
                results.append((result, data))
            except LogbusError as error:
                failed = FetchResult(asked.topic, asked.partition, error=error_info(error))
                results.append((failed, b""))
        return results

    def _metadata(self, message: MetadataRequest) -> MetadataResponse:
        known = self.cluster.topics if self.hears_of_topics else {}
        known = known if self.heard is None else self.heard
        names = list(known) if message.topics is None else message.topics
        brokers = [
            BrokerInfo(broker.broker_id, broker.address.host, broker.address.port, rack=broker.rack)
            for broker in self.cluster.brokers
            if broker.up
        ]
        topics = []
        for name in names:
            topic = known.get(name)
            if topic is None:
                continue
            parts = [
                PartitionInfo(
                    number,
                    part.leader,
                    part.epoch,
                    self._ends(part, message.ends),
                    replicas=[part.leader, *part.followers] if part.followers else [],
                    in_sync=part.in_sync,
                )
                for number, part in topic.partitions.items()
            ]
            topics.append(TopicInfo(name, topic.topic_id, parts, topic.config))
        return MetadataResponse(brokers, topics)

    def _ends(self, part: FakePartition, wanted: bool) -> PartitionEnds | None:
        if not wanted or part.leader != self.broker_id:
            return None
        size = sum(len(data) for _, data in part.batches)
        return PartitionEnds(part.start, part.end, part.end, size)

    def _list_offsets(self, message: ListOffsetsRequest) -> ListOffsetsResponse:
        results = []
        for asked in message.partitions:
            try:
                part = self._led(asked.topic, asked.partition)
            except LogbusError as error:
                results.append(
                    ListOffsetsResult(asked.topic, asked.partition, error=error_info(error))
                )
                continue
            offset: int | None = part.start if asked.at == "earliest" else part.end
            if asked.at == "timestamp":
                offset = next(
                    (
                        header.base_offset
                        for header, _ in part.batches
                        if header.max_timestamp_us >= asked.timestamp_us
                    ),
                    None,
                )
            results.append(ListOffsetsResult(asked.topic, asked.partition, offset))
        return ListOffsetsResponse(results)

    def _split(self, message: SplitRangeRequest) -> SplitRangeResponse:
        results = []
        for asked in message.partitions:
            part = self._led(asked.topic, asked.partition)
            cuts = [
                header.base_offset
                for header, _ in part.batches
                if asked.start < header.base_offset < asked.end
            ]
            size = sum(len(data) for _, data in part.batches)
            results.append(SplitRangeResult(asked.topic, asked.partition, cuts, size))
        return SplitRangeResponse(results)

    def _create(self, message: CreateTopicRequest) -> CreateTopicResponse:
        if message.name in self.cluster.topics:
            raise TopicExistsError(f"Topic {message.name} exists.")
        self.cluster.create(message.name, partitions=message.partitions, config=message.config)
        return CreateTopicResponse(f"id-{message.name}")

    def _delete(self, message: DeleteTopicRequest) -> DeleteTopicResponse:
        if self.cluster.topics.pop(message.name, None) is None:
            raise UnknownTopicError(f"No topic {message.name}.")
        return DeleteTopicResponse()


def _slice(part: FakePartition, asked: FetchPartition, max_bytes: int, *, end: int) -> bytes:
    if asked.offset > end and end < part.end:
        return b""  # a follower that lags
    if not part.start <= asked.offset <= part.end:
        raise OffsetOutOfRangeError(f"Offset {asked.offset} is outside [{part.start}, {part.end}].")
    data = b""
    for header, batch in part.batches:
        if header.next_offset <= asked.offset:
            continue
        if asked.end is not None and header.base_offset >= asked.end:
            break
        if header.next_offset > end:
            break
        if data and len(data) + len(batch) > max_bytes:
            break
        data += batch
    return data
