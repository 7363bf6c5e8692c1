"""Commits atomic writes whose tasks have staged their records.

Three steps. *Prepare*: the leaders say that all of it is on disk. *Decide*: a broker writes the
decision to ZooKeeper; from then on the write is committed. *Publish*: the leaders append what was
staged, and it becomes visible. Whoever dies in between leaves either nothing that was decided, and
what is staged expires; or a decision, which the brokers find and follow up by themselves.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.client.cluster.leaders import LeaderCall
from spark_logbus.client.writes.content import UNKNOWN_INPUTS, WriteInputs, write_content
from spark_logbus.errors import (
    LogbusError,
    StagedDataLostError,
    UnknownTopicError,
    WriteMismatchError,
    WriteNotPreparedError,
)
from spark_logbus.forks import follow_forks
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.protocol import (
    Api,
    DecideRequest,
    DecideResponse,
    Decision,
    DiscardRequest,
    DiscardResponse,
    ErrorInfo,
    Message,
    PrepareRequest,
    PublishRequest,
    ShareResponse,
    TopicShares,
    WriteContent,
    WriteShare,
)
from spark_logbus.record.stage_id import attempts_text
from spark_logbus.retry import Deadline
from spark_logbus.wire.connection import BrokerConnection, PendingResponse

logger = logging.getLogger(__name__)

# What brokers certainly copy and flush in a second. A publishing is waited for that long, beyond
# the usual time for retries; it goes on if it takes longer.
_PUBLISHED_BYTES_A_SECOND: Final = 20_000_000
_DISCARD_MS: Final = 5_000
_TIDY_MS: Final = 200  # a micro-batch is held up by no more
_REMEMBERED: Final = 1_000
# Times that a write is prepared again because a promise was let go before it was decided, however
# long that takes; it is tried more often for as long as any request is.
_PREPARED_ANEW: Final = 5
_NO_WRITE: Final = 0  # of none that is ever decided: numbers are random


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteIdentity:
    """Identity that a write keeps when it is tried again.

    ``writer`` writes ``version`` after version, which rise; each is committed once. ``run`` tells
    a run of a query from those before it, which must not write any more. ``once``: the writer
    writes nothing else.
    """

    writer: str
    version: int
    run: str = ""
    once: bool = False


@dataclass(frozen=True, slots=True)
class StagedTask:
    """The attempt of a task that counts, and the number of records that it has staged in each
    partition, ``size_bytes`` in all. ``unplaced``: how many of each topic's neither a key nor the
    caller sent to their partitions."""

    attempt: int
    records: Mapping[TopicPartition, int]
    size_bytes: int
    unplaced: Mapping[str, int] = field(default_factory=dict)


class Repetition(enum.Enum):
    """The fate of a version that was committed before, and comes again."""

    #: It is the write that was committed, by all that can be told, or it is refused.
    CHECKED = "checked"
    #: Nobody looks at it: all of it is dropped.
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Commit:
    """The outcome. ``committed`` is False when that version was committed before, by another
    attempt at the same write; then nothing of this one is kept. ``visible``: all of what is
    committed can be read; otherwise it will be, as soon as the brokers that are away are back.
    ``write`` is the number of the attempt that is committed, and ``version`` is its own, which may
    be a later one."""

    committed: bool
    visible: bool = True
    write: int = 0
    version: int = 0


class AtomicWrites:
    """Commits and aborts writes. Thread-safe; the cluster is shared, not owned."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._prepare_call = _share_call(cluster, Api.PREPARE, _preparing)
        self._publish_call = _share_call(cluster, Api.PUBLISH, _publishing)
        # The last write of each writer that was seen to be published everywhere.
        self._published: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()
        follow_forks(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    def commit(
        self,
        identity: WriteIdentity,
        write: int,
        tasks: Sequence[StagedTask],
        *,
        inputs: WriteInputs | None = None,
        repetition: Repetition | None = Repetition.CHECKED,
    ) -> Commit:
        """Commit what ``tasks``, in this order, have staged under the number ``write``, made of
        ``inputs``, None where these are not known.

        When it returns, the write is committed for good, or an attempt at it was before. With None
        for ``repetition`` the caller tells by the number of the write which one that was. Raises
        StagedDataLostError, WriteFencedError, WriteMismatchError when the version was committed
        and is another write, and what the cluster meets; if that is not retriable, nothing was
        committed.
        """
        tasks = [task for task in tasks if task.records]
        decision = self._decision(identity, write, tasks)
        told = None
        if repetition is not None and not identity.once:
            told = self._told(tasks, decision, inputs or UNKNOWN_INPUTS, repetition)
        size_bytes = sum(task.size_bytes for task in tasks)
        try:
            promises = self._prepare(identity, decision)
            standing = self._decide(identity, decision, promises, told)
        except StagedDataLostError:
            # It may have been dropped because this version is committed already.
            standing = self._committed_before(identity, decision.write, told)
            if standing is None:
                raise
        if standing is not None:
            visible = self._publish(identity.writer, standing, required=False)
            self.discard(write, writer=identity.writer)
            return _standing(standing, visible=visible)
        visible = self._publish(identity.writer, decision, required=False, size_bytes=size_bytes)
        if visible:
            self._tidy(identity.writer, decision)
        return Commit(committed=True, visible=visible, write=write, version=identity.version)

    def check_empty(
        self,
        identity: WriteIdentity,
        write: int,
        *,
        inputs: WriteInputs | None = None,
        repetition: Repetition = Repetition.CHECKED,
    ) -> None:
        """Make sure that a version without records is not one that was committed with some. Raises
        WriteMismatchError, WriteFencedError and what the cluster meets."""
        nothing = Decision(identity.version, write, "")
        told = self._told([], nothing, inputs or UNKNOWN_INPUTS, repetition)
        self._committed_before(identity, write, told)

    def find_committed(self, identity: WriteIdentity) -> Commit | None:
        """The commit of that version by any attempt, published as far as it can be; None if it is
        not committed. Raises what the cluster meets."""
        standing = self._committed_before(identity, _NO_WRITE, None)
        if standing is None:
            return None
        visible = self._publish(identity.writer, standing, required=False)
        return _standing(standing, visible=visible)

    def abort(self, identity: WriteIdentity, write: int) -> bool:
        """Let the write never be committed, and drop what it has staged; False if it is committed
        already."""
        decision = Decision(identity.version, write, "")
        request = DecideRequest(
            identity.writer, identity.run, decision, once=identity.once, abort=True
        )
        if self._ask("Aborting a write", request).outcome != "aborted":
            return False
        self.discard(write, writer=identity.writer)
        return True

    def discard(self, write: int, attempt: int | None = None, *, writer: str = "") -> None:
        """Drop what the write, or an attempt of a task in it, has staged, on brokers that answer;
        elsewhere it expires. Brokers that ask who somebody is want the ``writer``, too."""
        request = DiscardRequest(write, attempt, writer)
        self._discard(request, self._cluster.brokers, wait_ms=_DISCARD_MS)

    def _tidy(self, writer: str, decision: Decision) -> None:
        """Drop what attempts that do not count have staged where no part of the write was: only
        there it is not dropped with the rest."""
        deadline = self._cluster.deadline_ms(_TIDY_MS)
        with suppress(LogbusError):
            leaders = {
                self._cluster.leader(TopicPartition(topic, partition), deadline)
                for topic, part in decision.topics.items()
                for partition in part.records
            }
            others = [address for address in self._cluster.brokers if address not in leaders]
            request = DiscardRequest(decision.write, writer=writer)
            self._discard(request, others, wait_ms=_TIDY_MS)

    def _discard(
        self, request: DiscardRequest, brokers: Iterable[BrokerAddress], *, wait_ms: int
    ) -> None:
        """Ask all of them at once; who is away or slow is not waited for longer."""
        deadline = self._cluster.deadline_ms(wait_ms)
        pool = self._cluster.pool
        asked: list[tuple[BrokerConnection, PendingResponse]] = []
        for address in brokers:
            with suppress(LogbusError):
                connection = pool.take(address, deadline)
                try:
                    asked.append((connection, connection.send(Api.DISCARD, request)))
                except LogbusError:
                    connection.close()
        for connection, pending in asked:
            with suppress(LogbusError):
                pending.result(DiscardResponse, deadline)
            pool.give_back(connection)

    # -- the steps ------------------------------------------------------------------------

    def _decision(
        self, identity: WriteIdentity, write: int, tasks: Sequence[StagedTask]
    ) -> Decision:
        records: Counter[TopicPartition] = Counter()
        for task in tasks:
            records.update(task.records)
        deadline = self._cluster.retry_deadline()
        topics: dict[str, TopicShares] = {}
        for topic_partition, count in records.items():
            topic = topic_partition.topic
            if topic not in topics:
                known = self._cluster.retrying(
                    f"Looking for topic {topic}",
                    partial(self._cluster.topic, topic),
                    deadline=deadline,
                )
                topics[topic] = TopicShares(known.topic_id, {})
            topics[topic].records[topic_partition.partition] = count
        attempts = attempts_text(task.attempt for task in tasks)
        return Decision(identity.version, write, attempts, topics)

    def _told(
        self,
        tasks: Sequence[StagedTask],
        decision: Decision,
        inputs: WriteInputs,
        repetition: Repetition,
    ) -> _Told:
        unplaced = Counter[str]()
        for task in tasks:
            unplaced.update(task.unplaced)
        deadline = self._cluster.retry_deadline()
        content = write_content(
            {
                TopicPartition(topic, partition): count
                for topic, part in decision.topics.items()
                for partition, count in part.records.items()
            },
            unplaced,
            partitions={
                topic: len(self._cluster.topic(topic, deadline).leaders)
                for topic in decision.topics
            },
            inputs=inputs,
        )
        return _Told(content, inputs.told, dropped=repetition is Repetition.DROPPED)

    def _decide(
        self,
        identity: WriteIdentity,
        decision: Decision,
        promises: Mapping[int, str],
        told: _Told | None,
    ) -> Decision | None:
        """Decides a write; returns None, or the decision of the same version that was before."""
        settled = self._published.get(identity.writer)
        refusals = 0
        deadline = self._cluster.retry_deadline()
        while True:
            try:
                answer = self._ask_to_decide(
                    identity, decision, told, settled=settled, promises=promises
                )
            except WriteNotPreparedError:
                # A broker may have dropped what it had, or has only started anew: it says which.
                # One from which many partitions move away lets go of its promise with each.
                refusals += 1
                pause_s = self._cluster.backoff.pause_s(refusals)
                if refusals > _PREPARED_ANEW and pause_s >= deadline.remaining_s:
                    raise
                if refusals > 1:
                    self._cluster.pause(pause_s)
                promises = self._prepare(identity, decision, anew=True)
                continue
            if answer.outcome == "decided":
                return None
            assert answer.decision is not None, "a decision that stands comes with the answer"
            if answer.outcome == "already":
                return answer.decision
            # The order of a writer's writes is that of its versions, in every partition.
            self._publish(identity.writer, answer.decision, required=True)
            settled = answer.decision.write

    def _prepare(
        self, identity: WriteIdentity, decision: Decision, *, anew: bool = False
    ) -> dict[int, str]:
        """The promises of all leaders, by broker id, to keep what the write has staged. Raises
        StagedDataLostError."""
        shares = list(_shares(decision, identity.writer, anew=anew))
        promises: dict[int, str] = {}
        for answer in self._prepare_call.ask_all("Preparing a write", shares):
            # Where a broker has given two, no one knows which of them is of what: none is right.
            same = promises.get(answer.broker_id, answer.promise) == answer.promise
            promises[answer.broker_id] = answer.promise if same else ""
        return promises

    def _committed_before(
        self, identity: WriteIdentity, write: int, told: _Told | None
    ) -> Decision | None:
        """The decision of the same version, if there is one."""
        asked = Decision(identity.version, write, "")
        answer = self._ask_to_decide(identity, asked, told, look=True)
        return answer.decision if answer.outcome == "already" else None

    def _ask_to_decide(
        self,
        identity: WriteIdentity,
        decision: Decision,
        told: _Told | None,
        *,
        settled: int | None = None,
        look: bool = False,
        promises: Mapping[int, str] | None = None,
    ) -> DecideResponse:
        request = DecideRequest(
            identity.writer, identity.run, decision,
            settled=settled,
            once=identity.once,
            look=look,
            content=None if told is None else told.content,
            inputs="" if told is None else told.inputs,
            repetition_dropped=told is not None and told.dropped,
            promises=dict(promises or {}),
        )  # fmt: skip
        answer = self._ask("Committing a write", request)
        compares = told is not None and not told.dropped
        if compares and answer.outcome == "already" and not answer.compared:
            raise WriteMismatchError(
                f"Version {identity.version} of {identity.writer} was committed before, and the "
                "broker is of an earlier release that cannot tell whether it is the same write; "
                "nothing of what comes again is kept. Upgrade the brokers, and try again."
            )
        return answer

    def _ask(self, action: str, request: DecideRequest) -> DecideResponse:
        return self._cluster.retrying(
            action,
            lambda deadline: self._cluster.ask_any(
                Api.DECIDE, request, DecideResponse, deadline=deadline
            ),
        )

    def _publish(
        self, writer: str, decision: Decision, *, required: bool, size_bytes: int = 0
    ) -> bool:
        """Have it published; False if that is not done in time. With ``required`` that raises."""
        wait_ms = self._cluster.config.retry_deadline_ms
        wait_ms += size_bytes * 1000 // _PUBLISHED_BYTES_A_SECOND
        deadline = self._cluster.deadline_ms(wait_ms)
        try:
            try:
                self._publish_all(decision, deadline, writer)
            except StagedDataLostError:
                # What the brokers have published everywhere by themselves they have forgotten.
                if not self._is_published(writer, decision):
                    raise
        except LogbusError as error:
            if required:
                raise
            logger.warning(
                "The write is committed, but not all of it is visible yet: %s The brokers go on "
                "by themselves.", error,
            )  # fmt: skip
            return False
        with self._lock:
            self._published[writer] = decision.write
            self._published.move_to_end(writer)
            while len(self._published) > _REMEMBERED:
                self._published.popitem(last=False)
        return True

    def _is_published(self, writer: str, decision: Decision) -> bool:
        """Tells if nothing of a decided write is left to publish, for all that ZooKeeper knows."""
        another = Decision(decision.version, decision.write ^ 1, "")
        request = DecideRequest(writer, "", another, look=True)
        standing = self._ask("Looking at a write", request).decision
        return standing is None or standing.write != decision.write or not standing.topics

    def _publish_all(self, decision: Decision, deadline: Deadline, writer: str) -> None:
        action = "Publishing a write"
        try:
            self._publish_call.ask_all(action, list(_shares(decision, writer)), deadline=deadline)
            return
        except UnknownTopicError as error:
            logger.warning("A topic of a committed write is gone: %s", error)
        for topic in decision.topics:
            with suppress(UnknownTopicError):
                shares = [each for each in _shares(decision, writer) if each.share.topic == topic]
                self._publish_call.ask_all(action, shares, deadline=deadline)


@dataclass(frozen=True, slots=True)
class _Told:
    """The content of a write as brokers are told it, so that its repetition is recognised."""

    content: WriteContent
    inputs: str
    dropped: bool


def _standing(decision: Decision, *, visible: bool) -> Commit:
    return Commit(committed=False, visible=visible, write=decision.write, version=decision.version)


@dataclass(frozen=True, slots=True)
class _Share:
    """A question to the leader of a partition."""

    decision: Decision
    share: WriteShare
    writer: str
    anew: bool


@dataclass(slots=True)
class _Answer:
    """A leader's answer about one share, and its promise if it has given one."""

    topic: str
    partition: int
    error: ErrorInfo | None
    broker_id: int
    promise: str


def _shares(decision: Decision, writer: str, *, anew: bool = False) -> Iterator[_Share]:
    for topic, part in decision.topics.items():
        for partition, records in part.records.items():
            share = WriteShare(topic, part.topic_id, partition, records)
            yield _Share(decision, share, writer, anew)


def _preparing(shares: list[_Share]) -> Message:
    one, wanted = shares[0], [each.share for each in shares]
    decision = one.decision
    return PrepareRequest(decision.write, decision.attempts, wanted, one.writer, one.anew)


def _publishing(shares: list[_Share]) -> Message:
    one, wanted = shares[0], [each.share for each in shares]
    return PublishRequest(one.decision.write, one.decision.attempts, wanted, one.writer)


def _share_call(
    cluster: Cluster, api: Api, request: Callable[[list[_Share]], Message]
) -> LeaderCall[_Share, _Answer, ShareResponse]:
    def results(response: ShareResponse) -> Sequence[_Answer]:
        return [
            _Answer(each.topic, each.partition, each.error, response.broker_id, response.promise)
            for each in response.results
        ]

    return LeaderCall(
        cluster,
        api,
        request=request,
        response=ShareResponse,
        results=results,
        topic_partition=lambda each: TopicPartition(each.share.topic, each.share.partition),
        topic_id=lambda each: each.share.topic_id,
    )
