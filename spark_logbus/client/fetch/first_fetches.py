"""Fetches of where many ranges begin: one request for each broker, all under way at once.

A micro-batch of many partitions is a few kilobytes of each. Asked for one after the other, each
would take a round trip, which is longer than its bytes take.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.errors import LogbusError, ProtocolError
from spark_logbus.model import BrokerAddress, OffsetRange
from spark_logbus.protocol import Api, ColumnChoice, FetchPartition, FetchRequest, FetchResponse
from spark_logbus.retry import Deadline
from spark_logbus.wire.connection import BrokerConnection, PendingResponse

if TYPE_CHECKING:
    from spark_logbus.client.fetch.values import ValueReader

logger = logging.getLogger(__name__)

_MAX_RANGES: Final = 1_000  # of one round; keeps a request header far below its limit
# Of a request header, of which brokers take 2 MiB: what the choices of columns may take, which name
# up to 16 versions of a schema.
_MAX_CHOICE_BYTES: Final = 512 << 10
_MAX_BYTES: Final = 8 << 20  # of one round, all leaders together
# Of one range. From here on a broker on this machine passes its file over, which takes less time.
_MAX_RANGE_BYTES: Final = 1 << 20
# For an answer to begin. A leader that is silent must not hold up the others for long.
_PATIENCE_MS: Final = 1_500


class FirstFetch(NamedTuple):
    """Record batches from the start of a range on, the last of which may be cut off."""

    data: memoryview

    chosen: bool = False
    """They came with the columns that the topic's ``ValueReader`` chooses."""


class FirstFetches:
    """The first bytes of each of ``ranges``, which are asked for when the first one is taken.
    ``values`` are the readers of topics with a schema, which choose the columns that come.

    Decides nothing: a range of which nothing came, whatever the reason, is to be read as if there
    were no such thing, and then meets the reason itself. In memory are at most twice 8 MiB, and
    one record batch of each leader. Not thread-safe.
    """

    def __init__(
        self,
        cluster: Cluster,
        ranges: Sequence[OffsetRange],
        topic_ids: Mapping[str, str],
        *,
        values: Mapping[str, ValueReader] | None = None,
    ) -> None:
        self._cluster = cluster
        self._ranges = ranges
        self._topic_ids = topic_ids
        self._choices = {topic: reader.choice for topic, reader in (values or {}).items()}
        largest = max(map(_encoded_bytes, self._choices.values()), default=0)
        self._ranges_a_round = min(_MAX_RANGES, max(1, _MAX_CHOICE_BYTES // max(1, largest)))
        self._received: dict[int, FirstFetch] = {}
        self._asked_up_to = 0

    def take(self, number: int) -> FirstFetch | None:
        """Returns what came of the range of that number, from its start on. Called in their
        order."""
        if number >= self._asked_up_to:
            self._ask(range(number, min(len(self._ranges), number + self._ranges_a_round)))
        return self._received.pop(number, None)

    def _ask(self, numbers: range) -> None:
        self._asked_up_to = numbers.stop
        patience = self._cluster.deadline_ms(_PATIENCE_MS)
        begun = self._cluster.deadline_ms(self._cluster.config.request_timeout_ms)
        by_address = self._by_address(numbers, patience)
        room = max(_MAX_RANGE_BYTES, _MAX_BYTES // max(1, len(by_address)))
        sent: list[tuple[list[int], BrokerConnection, PendingResponse]] = []
        for address, asked in by_address.items():
            with self._without_errors():
                connection = self._cluster.pool.take(address, patience)
                pending = connection.send(Api.FETCH, self._request(asked, address, room))
                sent.append((asked, connection, pending))
        for asked, connection, pending in sent:
            with self._without_errors():
                response = pending.result(FetchResponse, patience, begun=begun)
                self._take_in(asked, response, pending.payload, room)
            self._cluster.pool.give_back(connection)

    @contextmanager
    def _without_errors(self) -> Iterator[None]:
        try:
            yield
        except LogbusError as error:
            logger.debug("Some ranges were not fetched together: %s", error)

    def _by_address(self, numbers: range, deadline: Deadline) -> dict[BrokerAddress, list[int]]:
        partitions = [self._ranges[number].topic_partition for number in numbers]
        unknown = {each.topic for each in partitions if self._cluster.is_stale(each.topic)}
        if unknown:
            with self._without_errors():
                self._cluster.ask_metadata(sorted(unknown), deadline=deadline)
        by_address: dict[BrokerAddress, list[int]] = {}
        for number, topic_partition in zip(numbers, partitions, strict=True):
            address = self._cluster.cached_replica_to_read(topic_partition)
            if address is not None and number not in self._received:
                by_address.setdefault(address, []).append(number)
        return by_address

    def _request(self, asked: Sequence[int], address: BrokerAddress, room: int) -> FetchRequest:
        ranges = [self._ranges[number] for number in asked]
        return FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=room,
            partitions=[
                FetchPartition(
                    each.topic_partition.topic,
                    each.topic_partition.partition,
                    each.start,
                    _MAX_RANGE_BYTES,
                    each.end,
                    self._topic_ids[each.topic_partition.topic],
                    self._choices.get(each.topic_partition.topic),
                )
                for each in ranges
            ],
            replica=not all(self._cluster.leads(each.topic_partition, address) for each in ranges),
        )

    def _take_in(
        self, asked: Sequence[int], response: FetchResponse, payload: memoryview, room: int
    ) -> None:
        lengths = [result.length for result in response.results]
        if len(lengths) != len(asked) or min(lengths) < 0 or sum(lengths) != len(payload):
            raise ProtocolError(
                f"A fetch of {len(asked)} ranges was answered with {len(lengths)} results and "
                f"{len(payload)} bytes, of which {sum(lengths)} are theirs."
            )
        at = 0
        for number, result in zip(asked, response.results, strict=True):
            length = result.length
            if length:
                self._received[number] = FirstFetch(payload[at : at + length], result.chosen)
            elif at >= room // 2 and number > asked[0]:
                # There was no more room. The next round begins there.
                self._asked_up_to = min(self._asked_up_to, number)
            at += length


def _encoded_bytes(choice: ColumnChoice | None) -> int:
    """Number of bytes that it takes of a request."""
    return 0 if choice is None else len(msgspec.msgpack.encode(choice))
