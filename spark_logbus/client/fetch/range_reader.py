"""Reads one offset range from its leader, in order, as fast as one connection goes.

The next fetch cannot be sent before the last one has come, because where it begins is known
only from the record batch headers. So a reader walks those first, sends the next fetch, and
decodes what it has while the broker is already sending.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final

from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.client.cluster.leaders import fetch_error
from spark_logbus.client.cluster.silence import result_while_led
from spark_logbus.client.cluster.topic_identity import require_topic
from spark_logbus.client.fetch.batches import (
    EncodedBatch,
    FetchedBatch,
    damaged,
    decoded,
    encoded_batch,
    received_run,
)
from spark_logbus.client.fetch.columns import FetchedColumns, take_columns
from spark_logbus.client.fetch.first_fetches import FirstFetch
from spark_logbus.client.fetch.plain_reader import PLAIN_READER, KeysOnlyReader
from spark_logbus.client.mapped_file import mapped
from spark_logbus.errors import (
    ConfigError,
    CorruptRecordBatchError,
    LogbusError,
    NotLeaderError,
    OffsetOutOfRangeError,
    ProtocolError,
)
from spark_logbus.model import BrokerAddress, OffsetRange
from spark_logbus.protocol import (
    Api,
    ColumnChoice,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
)
from spark_logbus.record import verify_against
from spark_logbus.record.run import RecordBatchRun
from spark_logbus.retry import Deadline
from spark_logbus.wire.connection import BrokerConnection, PendingResponse

if TYPE_CHECKING:
    from spark_logbus.client.fetch.plain_reader import PlainReader

logger = logging.getLogger(__name__)

_MAX_WAIT_MS: Final = 500  # of one fetch, when the range reaches beyond the high watermark
# Of a file that a broker on this machine passes over: the larger the part that is mapped at once,
# the less time a byte takes.
_MAX_MAPPED_BYTES: Final = 32 << 20


class RangeReader:
    """Iterator over the record batches of one ``OffsetRange``. Not thread-safe.

    Lost connections and leader moves are mended on the way, without a record lost or repeated.
    At most two responses are in memory, each of ``fetch_bytes`` or one record batch if that is
    larger, plus those that the caller's arrow batches still look into. Parts of files of a broker
    on this machine are mapped instead, and may be larger.

    ``in_flight`` 2 fetches ahead while the caller works, 1 does not. A range whose end stays
    beyond the high watermark for ``missing_tail_wait_ms`` raises OffsetOutOfRangeError, as does
    a start that is no longer in the log. With ``topic_id``, a topic that was deleted and created
    again raises TopicRecreatedError. Other errors: UnknownTopicError, CorruptRecordBatchError,
    and the retriable ones once the retry deadline has passed. ``received`` is what another fetch
    has brought from the start on, to begin with. ``values`` decodes those of a topic with a schema,
    and says which columns are asked for; its errors are raised as well. ``without_values`` leaves
    out values that only who has their schema could decode.
    """

    def __init__(
        self,
        cluster: Cluster,
        offset_range: OffsetRange,
        *,
        topic_id: str | None = None,
        fetch_bytes: int = 8 << 20,
        in_flight: int = 2,
        missing_tail_wait_ms: int = 5_000,
        received: FirstFetch | None = None,
        values: PlainReader | None = None,
        without_values: bool = False,
    ) -> None:
        if fetch_bytes < 1 or not 1 <= in_flight <= 2:
            raise ConfigError(
                f"fetch_bytes is {fetch_bytes} and in_flight {in_flight}; use at least 1 byte, "
                "and in_flight 1, or 2 to fetch ahead."
            )
        self._cluster = cluster
        self._range = offset_range
        self._tp = offset_range.topic_partition
        self._topic_id = topic_id
        self._fetch_bytes = fetch_bytes
        self._ahead = in_flight > 1
        self._missing_tail_wait_ms = missing_tail_wait_ms
        self._max_mapped_bytes = min(_MAX_MAPPED_BYTES, cluster.config.max_response_bytes)
        self._position = offset_range.start  # where the next fetch begins
        self._received: RecordBatchRun | None = None  # not handed out yet
        self._connection: BrokerConnection | None = None
        self._follower: BrokerAddress | None = None  # at the other end, where it is no leader
        self._pending: PendingResponse | None = None
        self._tail_deadline: Deadline | None = None
        self._closed = False
        self._values = values or (KeysOnlyReader() if without_values else PLAIN_READER)
        if received is not None:
            with suppress(LogbusError):  # fetched again, and the error met by who reads
                chosen_by = self._values if received.chosen else None
                data, start = received.data, self._position
                self._take(received_run(self._tp, data, position=start, chosen_by=chosen_by))

    def __iter__(self) -> Iterator[FetchedBatch]:
        return self

    def __next__(self) -> FetchedBatch:
        while (run := self._next_run()) is not None:
            try:
                fetched = decoded(
                    self._tp,
                    encoded_batch(run, 0),
                    start=self._range.start,
                    end=self._range.end,
                    values=self._values,
                )
            except BaseException:
                self.close()
                raise
            self._drop(1)
            if fetched is not None:
                return fetched
        raise StopIteration

    def next_columns(
        self, wanted: Collection[str], *, enough_rows: int, enough_bytes: int
    ) -> FetchedColumns | None:
        """The ``wanted`` columns of the next records, at most about ``enough_rows`` or
        ``enough_bytes`` of them, but at least those of one record batch; None at the end.

        Small record batches are decoded together, in a fraction of the time that it takes one by
        one. Raises what iterating does; records before the damaged ones are returned first.
        """
        while (run := self._next_run()) is not None:
            try:
                count, found = take_columns(
                    self._tp,
                    run,
                    wanted,
                    start=self._range.start,
                    end=self._range.end,
                    enough_rows=enough_rows,
                    enough_bytes=enough_bytes,
                    values=self._values,
                )
            except BaseException:
                self.close()
                raise
            self._drop(count)
            if found is not None:
                return found
        return None

    def next_encoded(self) -> EncodedBatch | None:
        """The next record batch as it is stored, verified and not decoded; None at the end.

        The first one and the last one may reach out of the range, and a control record batch is
        among them where the log has one. Raises what iterating does, but for what decoding finds.
        """
        run = self._next_run()
        if run is None or run.base_offset >= self._range.end:
            self.close()
            return None
        raw = encoded_batch(run, 0)
        try:
            verify_against(raw.header, raw.data)
        except CorruptRecordBatchError as error:
            self.close()
            raise damaged(self._tp, raw.header, error) from error
        self._drop(1)
        return raw

    def _next_run(self) -> RecordBatchRun | None:
        """Returns what has been received, fetched if need be. At the end gives all back and returns
        None."""
        try:
            while not self._closed and self._received is None and self._position < self._range.end:
                self._cluster.retrying(
                    f"Reading {self._range} at offset {self._position}",
                    self._fetch,
                    topics=[self._tp.topic],
                )
        except BaseException:
            self.close()
            raise
        if self._received is None:
            self.close()
        return self._received

    def _drop(self, count: int) -> None:
        """Forget the first record batches of what has been received."""
        run = self._received
        rest = len(run) - count if run is not None else 0
        self._received = run.part(count, len(run)) if run is not None and rest else None

    def close(self) -> None:
        """Give the connection back. Arrow batches handed out stay valid."""
        self._closed = True
        self._received = None
        self._disconnect()

    def __enter__(self) -> RangeReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- fetching -------------------------------------------------------------------------

    def _fetch(self, deadline: Deadline) -> None:
        """Receive one response; on a failure forget the connection, so that a retry starts anew,
        with the leader if it was a follower that failed."""
        try:
            if self._pending is None:
                self._send(deadline)
            self._receive(deadline)
        except LogbusError as error:
            self._disconnect()
            follower, self._follower = self._follower, None
            if follower is None:
                raise
            self._cluster.avoid_followers(self._tp)
            if error.retriable:
                raise
            raise NotLeaderError(
                f"{follower}, which follows {self._tp}, cannot be read from: {error}"
            ) from error

    def _disconnect(self) -> None:
        self._pending = None
        connection, self._connection = self._connection, None
        if connection is not None:
            self._cluster.pool.give_back(connection)

    def _send(self, deadline: Deadline) -> None:
        if self._connection is None:
            if self._topic_id is not None:
                # Brokers refuse another topic's id as if they did not lead it.
                require_topic(self._cluster, self._tp.topic, self._topic_id, deadline)
            address = self._cluster.replica_to_read(self._tp, deadline)
            self._follower = None if self._cluster.leads(self._tp, address) else address
            self._connection = self._cluster.pool.take(address, deadline)
        request = FetchRequest(
            max_wait_ms=min(_MAX_WAIT_MS, self._missing_tail_wait_ms),
            min_bytes=1,
            max_bytes=self._fetch_bytes,
            partitions=[
                FetchPartition(
                    self._tp.topic,
                    self._tp.partition,
                    self._position,
                    self._fetch_bytes,
                    self._range.end,
                    self._topic_id,
                    self._choice,
                )
            ],
            max_bytes_by_descriptor=self._max_by_file,
            replica=self._follower is not None,
        )
        self._pending = self._connection.send(Api.FETCH, request)

    @property
    def _maps_files(self) -> bool:
        takes_files = self._connection is not None and self._connection.takes_files
        return takes_files and self._max_mapped_bytes > 0

    @property
    def _choice(self) -> ColumnChoice | None:
        """The columns that a fetch asks for; None: all. It stays the same until that was answered.

        What is mapped is not sent: then to leave out what stands beside the values saves nothing.
        """
        if self._values.takes_all_fields and self._maps_files:
            return None
        return self._values.choice

    @property
    def _max_by_file(self) -> int:
        """Limit of the bytes of a file that a fetch asks for. It stays the same until that was
        answered."""
        if self._choice is not None:
            return 0  # some columns are fewer bytes than the whole file, however they come
        return self._max_mapped_bytes if self._maps_files else 0

    def _receive(self, deadline: Deadline) -> None:
        pending, self._pending = self._pending, None
        if pending is None or self._connection is None:
            raise ProtocolError("A range reader waited for a fetch that it had not sent.")
        patience = self._cluster.deadline_ms(self._cluster.config.request_timeout_ms + _MAX_WAIT_MS)
        first = min(deadline, patience, key=lambda each: each.at)
        response = result_while_led(
            self._cluster,
            pending,
            FetchResponse,
            first,
            source=self._connection.address,
            topic_partitions=[self._tp],
            due_ms=_MAX_WAIT_MS,
            begun=patience,
        )
        result = self._only_result(response, self._connection.address, len(pending.payload))
        if result.error is not None:
            raise fetch_error(self._cluster, result.error, self._tp, self._connection.address)
        if result.length == 0 and self._follower is not None:
            # It lags, and has been waited for. Whether records are there the leader knows.
            self._disconnect()
            self._cluster.avoid_followers(self._tp)
            return
        if result.length == 0:
            self._wait_for_tail(result.high_watermark, self._connection.address)
            return
        self._tail_deadline = None
        data = self._data(pending, response.position, result.length)
        if data is None:
            return  # to be fetched again
        chosen_by = self._values if result.chosen else None
        run = received_run(self._tp, data, position=self._position, chosen_by=chosen_by)
        if run is None:
            raise CorruptRecordBatchError(
                f"{self._tp}: a fetch at offset {self._position} brought {result.length} bytes "
                "without a whole record batch."
            )
        self._take(run)
        if self._ahead and self._position < self._range.end:
            try:
                self._send(deadline)
            except LogbusError:
                self._pending = None  # what was received counts; the next fetch meets the error

    def _take(self, run: RecordBatchRun | None) -> None:
        if run is not None:
            self._received = run
            self._position = run.next_offset

    def _only_result(
        self, response: FetchResponse, address: BrokerAddress, received: int
    ) -> FetchResult:
        """The result of one that answers what was asked; ProtocolError for any other."""
        by_file = response.position >= 0
        length = response.results[0].length if len(response.results) == 1 else -1
        if length < 0 or (not by_file and length != received):
            raise ProtocolError(
                f"{address} answered a fetch of one partition with {len(response.results)} results "
                f"and {received} bytes."
            )
        most = self._cluster.config.max_response_bytes if self._max_by_file else 0
        if by_file and length > most:
            raise ProtocolError(
                f"{address} answered a fetch with {length} bytes of a file, where at most {most} "
                "may come so."
            )
        return response.results[0]

    def _data(self, pending: PendingResponse, position: int, length: int) -> memoryview | None:
        """The data received, or in the file received; None if it cannot be had in this way."""
        if position < 0:
            return pending.payload
        try:
            if pending.file is not None:
                return mapped(pending.file, position, length)
            reason = "this process can take no more descriptors"
        except OSError as error:
            reason = error.strerror or str(error)
        logger.debug("%s is read through the socket: %s.", self._range, reason)
        self._max_mapped_bytes = 0
        return None

    def _wait_for_tail(self, high_watermark: int, leader: BrokerAddress) -> None:
        if self._tail_deadline is None:
            self._tail_deadline = self._cluster.deadline_ms(self._missing_tail_wait_ms)
        if self._tail_deadline.expired:
            if self._cluster.is_replaced(self._tp, leader):
                self._tail_deadline = None
                raise NotLeaderError(f"{leader} does not lead {self._tp} any more.")
            raise OffsetOutOfRangeError(
                f"{self._range} was to be read, but {self._tp} ends at {high_watermark}; records "
                f"from {self._position} on are not there. Was the topic deleted and created again?"
            )
