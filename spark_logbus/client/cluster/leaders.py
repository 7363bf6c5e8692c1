"""One question about many partitions, put to all their leaders at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.client.cluster.silence import result_while_led
from spark_logbus.client.cluster.topic_identity import require_topic
from spark_logbus.errors import (
    LogbusError,
    NotLeaderError,
    OffsetOutOfRangeError,
    ProtocolError,
    UnknownTopicError,
)
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.protocol import Api, ErrorInfo, Message
from spark_logbus.retry import Deadline
from spark_logbus.wire.connection import BrokerConnection, PendingResponse

_MAX_PARTITIONS_PER_REQUEST: Final = 2_000  # keeps a request header far below its limit


class PartitionResult(Protocol):
    topic: str
    partition: int
    error: ErrorInfo | None


P = TypeVar("P")
R = TypeVar("R", bound=PartitionResult)
M = TypeVar("M", bound=Message)


def partition_error(
    error: ErrorInfo, topic_partition: TopicPartition, leader: BrokerAddress
) -> LogbusError:
    """The error that a leader reported about one partition.

    A leader that does not know a partition which the metadata gives it has not heard of it
    yet, or no longer has it: for its client that is the same as not leading it.
    """
    known = error.to_exception()
    if isinstance(known, UnknownTopicError):
        return NotLeaderError(
            f"{leader} does not have {topic_partition} (any more, or not yet): {known}"
        )
    return known


def fetch_error(
    cluster: Cluster, error: ErrorInfo, topic_partition: TopicPartition, source: BrokerAddress
) -> LogbusError:
    """The error that a broker reported about a fetch from one partition.

    A leader that was replaced, and has not heard of it, may lack what was read before: an offset is
    out of range only if no other broker leads by now, for all that they know. Asks them for that.
    """
    known = partition_error(error, topic_partition, source)
    if isinstance(known, OffsetOutOfRangeError) and cluster.is_replaced(topic_partition, source):
        known = NotLeaderError(f"{source} does not lead {topic_partition} any more: {known}")
    if isinstance(known, NotLeaderError):
        cluster.leader_refused(topic_partition, source)
    return known


class LeaderCall(Generic[P, R, M]):
    """One API's requests about many partitions, sent to their leaders. Thread-safe."""

    def __init__(
        self,
        cluster: Cluster,
        api: Api,
        *,
        request: Callable[[list[P]], Message],
        response: type[M],
        results: Callable[[M], Sequence[R]],
        topic_partition: Callable[[P], TopicPartition],
        topic_id: Callable[[P], str | None] = lambda _: None,
    ) -> None:
        self._cluster = cluster
        self._api = api
        self._request = request
        self._response = response
        self._results = results
        self._tp = topic_partition
        self._topic_id = topic_id

    def ask_all(
        self, action: str, questions: Sequence[P], *, deadline: Deadline | None = None
    ) -> list[R]:
        """The answers in the order of the questions; retries those that can succeed, until the
        usual deadline for retries or the one that is given."""
        answers: dict[int, R] = {}
        topics = sorted({self._tp(question).topic for question in questions})

        def attempt(deadline: Deadline) -> None:
            left = [number for number in range(len(questions)) if number not in answers]
            _raise_worst(self._round(questions, left, answers, deadline))

        self._cluster.retrying(action, attempt, topics=topics, deadline=deadline)
        return [answers[number] for number in range(len(questions))]

    def ask_available(
        self, questions: Sequence[P], deadline: Deadline
    ) -> tuple[dict[int, R], dict[int, LogbusError]]:
        """Ask each leader once: the answers by the number of the question, and why the others
        did not come. Raises errors that no retry can mend."""
        answers: dict[int, R] = {}
        failures = self._round(questions, list(range(len(questions))), answers, deadline)
        for error in failures.values():
            if not error.retriable:
                raise error.again()
        return answers, failures

    def _round(
        self, questions: Sequence[P], left: list[int], answers: dict[int, R], deadline: Deadline
    ) -> dict[int, LogbusError]:
        """Ask each leader once; sorts the answers in, and returns why the others failed."""
        failures: dict[int, LogbusError] = {}
        by_leader: dict[BrokerAddress, list[int]] = {}
        for number in left:
            try:
                leader = self._leader(questions[number], deadline)
            except LogbusError as error:
                failures[number] = error.again()
            else:
                by_leader.setdefault(leader, []).append(number)
        deadline = deadline.sooner_ms(self._cluster.config.request_timeout_ms)
        sent: list[tuple[BrokerAddress, list[int], PendingResponse]] = []
        leased: list[BrokerConnection] = []
        try:
            others = len(by_leader)
            for leader, numbers in by_leader.items():
                unsent = numbers
                others -= 1
                # A leader that is silent must not use up the time of those after it.
                share_ms = deadline.remaining_s * 1000 / (2 if others else 1)
                try:
                    connection = self._cluster.pool.take(leader, deadline.sooner_ms(share_ms))
                    leased.append(connection)
                    while unsent:
                        some = unsent[:_MAX_PARTITIONS_PER_REQUEST]
                        message = self._request([questions[number] for number in some])
                        sent.append((leader, some, connection.send(self._api, message)))
                        unsent = unsent[len(some) :]
                except LogbusError as error:
                    failures.update(dict.fromkeys(unsent, error.again()))
            for leader, numbers, pending in sent:
                try:
                    response = result_while_led(
                        self._cluster,
                        pending,
                        self._response,
                        deadline,
                        source=leader,
                        topic_partitions=[self._tp(questions[number]) for number in numbers],
                    )
                    results = self._results(response)
                    self._sort_in(questions, numbers, results, leader, answers, failures)
                except LogbusError as error:
                    failures.update(dict.fromkeys(numbers, error.again()))
        finally:
            for connection in leased:
                self._cluster.pool.give_back(connection)
        return failures

    def _leader(self, question: P, deadline: Deadline) -> BrokerAddress:
        topic_partition = self._tp(question)
        topic_id = self._topic_id(question)
        if topic_id is not None:
            require_topic(self._cluster, topic_partition.topic, topic_id, deadline)
        return self._cluster.leader(topic_partition, deadline)

    def _sort_in(
        self,
        questions: Sequence[P],
        numbers: list[int],
        results: Sequence[R],
        leader: BrokerAddress,
        answers: dict[int, R],
        failures: dict[int, LogbusError],
    ) -> None:
        asked = [self._tp(questions[number]) for number in numbers]
        if [TopicPartition(result.topic, result.partition) for result in results] != asked:
            raise ProtocolError(
                f"{leader} answered a {self._api.name.lower()} request for {len(asked)} "
                f"partitions with other partitions ({len(results)} results)."
            )
        for number, topic_partition, result in zip(numbers, asked, results, strict=True):
            if result.error is None:
                answers[number] = result
            else:
                error = partition_error(result.error, topic_partition, leader)
                if isinstance(error, NotLeaderError):
                    self._cluster.leader_refused(topic_partition, leader)
                failures[number] = error


def _raise_worst(failures: Mapping[int, LogbusError]) -> None:
    """Raise the first of those that no retry can mend, else the first, if there is one."""
    errors = list(failures.values())
    for error in [error for error in errors if not error.retriable] + errors:
        raise error.again()
