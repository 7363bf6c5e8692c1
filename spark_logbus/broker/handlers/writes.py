"""Requests about atomic writes: prepared and published here, decided by ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from spark_logbus.broker.decided_shares import PartitionShare
from spark_logbus.broker.handlers.handler import Handle, RequestContext
from spark_logbus.broker.handlers.request_metrics import RequestMetrics
from spark_logbus.broker.handlers.work_executor import WorkExecutor
from spark_logbus.broker.metadata_cache import MetadataCache
from spark_logbus.broker.publisher import Publisher
from spark_logbus.broker.security.owners import Caller, WriteOwners
from spark_logbus.coordination import paths
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.writes.content import WriteContent
from spark_logbus.coordination.writes.decisions import (
    DecidedWrite,
    Outcome,
    Proposal,
    TopicRecords,
    check_proposal,
    check_records,
)
from spark_logbus.coordination.writes.writers import WriterRegistry
from spark_logbus.errors import (
    InvalidRequestError,
    LogbusError,
    NotAuthorizedError,
    UnknownTopicError,
    WriteNotPreparedError,
)
from spark_logbus.model import TopicPartition
from spark_logbus.network import Answer, Response
from spark_logbus.protocol import (
    Api,
    DecideRequest,
    DecideResponse,
    Decision,
    DiscardRequest,
    DiscardResponse,
    Operation,
    PrepareRequest,
    PublishRequest,
    Resource,
    ShareResponse,
    ShareResult,
    TopicShares,
    encode_response,
    error_info,
)
from spark_logbus.record.stage_id import StageIds, check_write, stage_id


class WriteHandler:
    """Answers requests about atomic writes. Thread-safe, keeps nothing between them.

    ``copying`` runs what takes as long as the disk does, ``preparing`` what waits for other
    replicas, ``coordinating`` what waits for ZooKeeper, or does not wait.
    """

    def __init__(
        self,
        publisher: Publisher,
        *,
        writers: WriterRegistry,
        metadata_cache: MetadataCache,
        copying: WorkExecutor,
        preparing: WorkExecutor,
        coordinating: WorkExecutor,
        owners: WriteOwners,
        metrics: RequestMetrics,
    ) -> None:
        self._publisher = publisher
        self._writers = writers
        self._metadata_cache = metadata_cache
        self._copying = copying
        self._preparing = preparing
        self._coordinating = coordinating
        self._owners = owners
        self._metrics = metrics

    def handlers(self) -> Mapping[Api, Handle]:
        return {
            Api.PREPARE: self.prepare,
            Api.PUBLISH: self.publish,
            Api.DECIDE: self.decide,
            Api.DISCARD: self.discard,
        }

    def prepare(self, request: PrepareRequest, context: RequestContext) -> Answer:
        caller = self._owners.caller(context.connection)
        shares = _shares(request, caller)

        def prepare() -> Response:
            promise, outcomes = self._publisher.prepare(shares, anew=request.anew)
            caller.note(Api.PREPARE, next(filter(None, map(_refusal, outcomes)), None))
            results = self._results(Api.PREPARE, shares, outcomes)
            broker_id = self._publisher.promises.broker_id
            return Response(encode_response(ShareResponse(results, broker_id, promise)))

        return self._preparing.run(prepare)

    def publish(self, request: PublishRequest, context: RequestContext) -> Answer:
        caller = self._owners.caller(context.connection)
        shares = _shares(request, caller)

        def publish() -> Response:
            with _noting(caller, Api.PUBLISH):
                outcomes = self._publisher.publish_decided(
                    shares, writer=request.writer, admit=caller.require_writer
                )
            return Response(
                encode_response(ShareResponse(self._results(Api.PUBLISH, shares, outcomes)))
            )

        # One who has waited for too long asks again, while the first is still at it.
        partitions = [(each.topic_partition, each.topic_id) for each in shares]
        key = (caller.owner, request.write, request.attempts, *partitions)
        return self._copying.run(publish, key=key)

    def _results(
        self, api: Api, shares: Sequence[PartitionShare], outcomes: Sequence[LogbusError | None]
    ) -> list[ShareResult]:
        results = []
        for each, outcome in zip(shares, outcomes, strict=True):
            if outcome is not None:
                self._metrics.failed(api, outcome)
            topic_partition = each.topic_partition
            results.append(
                ShareResult(
                    topic_partition.topic,
                    topic_partition.partition,
                    None if outcome is None else error_info(outcome),
                )
            )
        return results

    def decide(self, request: DecideRequest, context: RequestContext) -> Answer:
        caller = self._owners.caller(context.connection)
        proposal = _proposal(request, caller)
        change: Callable[[str, Proposal], Outcome] = partial(
            self._writers.decide, admit=partial(self._admit, proposal)
        )
        if request.look and request.abort:
            raise InvalidRequestError("A decision is looked at or aborted; got a request for both.")
        if request.look:
            change = self._writers.peek
        elif request.abort:
            change = self._writers.abort

        def decide() -> Response:
            with _noting(caller, Api.DECIDE):
                outcome = change(request.writer, proposal)
            if outcome.standing is None and not request.look and not request.abort:
                # A repeated request is believed in nothing: what was decided stands.
                decided = outcome.repeated or proposal.decision
                self._publisher.decided.add(request.writer, decided)
            return Response(encode_response(_response(outcome, aborting=request.abort)))

        return self._coordinating.run(decide)

    def _admit(self, proposal: Proposal) -> None:
        """Raise UnknownTopicError for a part of a write that no broker could publish, and
        WriteNotPreparedError for one whose leader has promised nothing. May ask ZooKeeper."""
        topics = proposal.decision.topics
        known = self._metadata_cache.topics
        unsure = [name for name, part in topics.items() if _missing(known.get(name), part)]
        found = self._metadata_cache.look_up(unsure) if unsure else {}
        for name in unsure:
            part = topics[name]
            if (missing := _missing(found.get(name), part)) is not None:
                raise UnknownTopicError(f"The write cannot be committed: {missing} Write it again.")
        for name, part in topics.items():
            record = found.get(name) or known[name]
            for partition in part.records:
                leader, _ = self._metadata_cache.leader(record, partition)
                if leader not in proposal.promises:
                    raise WriteNotPreparedError(
                        f"Broker {leader}, which leads {name}-{partition}, has not said that it "
                        "keeps what the write has staged there. Prepare the write, then decide it."
                    )

    def discard(self, request: DiscardRequest, context: RequestContext) -> Answer:
        caller = self._owners.caller(context.connection)
        if request.writer:
            paths.writer(request.writer)  # refuse what no writer is called
        check_write(request.write)
        if request.attempt is not None:
            stage_id(request.write, request.attempt)

        def discard() -> Response:
            with _noting(caller, Api.DISCARD):
                self._publisher.discard(
                    request.write,
                    request.attempt,
                    writer=request.writer,
                    by=caller.discards(request.writer),
                    may_discard=caller.may_discard,
                )
            return Response(encode_response(DiscardResponse()))

        return self._coordinating.run(discard)


@contextmanager
def _noting(caller: Caller, api: Api) -> Iterator[None]:
    """Notes it when the caller is refused what belongs to others."""
    try:
        yield
    except NotAuthorizedError as error:
        caller.note(api, error)
        raise


def _refusal(outcome: LogbusError | None) -> NotAuthorizedError | None:
    return outcome if isinstance(outcome, NotAuthorizedError) else None


def _shares(request: PrepareRequest | PublishRequest, caller: Caller) -> list[PartitionShare]:
    if request.writer:
        paths.writer(request.writer)  # refuse what no writer is called
    attempts = StageIds.of(request.write, request.attempts)
    owned = caller.mark(request.writer)
    shares: dict[TopicPartition, PartitionShare] = {}
    for share in request.partitions:
        topic_partition = TopicPartition(share.topic, share.partition)
        check_records(share.records, where=str(topic_partition))
        if topic_partition in shares:
            raise InvalidRequestError(f"A request about a write names {topic_partition} twice.")
        shares[topic_partition] = PartitionShare(
            attempts,
            share.records,
            request.writer,
            owned,
            topic_partition=topic_partition,
            topic_id=share.topic_id,
        )
    return list(shares.values())


def _missing(record: TopicRecord | None, part: TopicRecords) -> str | None:
    """Names what the topic of a write lacks, as a sentence; None if it has it all."""
    if record is None or record.topic_id != part.topic_id:
        return f"its topic with the id {part.topic_id} is gone, or never was."
    lacking = [partition for partition in part.records if partition not in record.partitions]
    if lacking:
        return (
            f"the topic {record.name} has {len(record.partitions)} partitions, and none with the "
            f"number {lacking[0]}."
        )
    return None


def _proposal(request: DecideRequest, caller: Caller) -> Proposal:
    """InvalidRequestError for a decision that nobody could follow up."""
    paths.writer(request.writer)
    decision, told = request.decision, request.content
    topics = {
        topic: TopicRecords(part.topic_id, part.records) for topic, part in decision.topics.items()
    }
    mark = caller.mark(request.writer)
    proposal = Proposal(
        DecidedWrite(decision.version, decision.write, decision.attempts, topics, mark),
        run=request.run,
        settled=request.settled,
        once=request.once,
        content=None
        if told is None
        else WriteContent(told.records, told.topics, told.partitions, told.layout, told.inputs),
        inputs="" if told is None else request.inputs,
        repetition_dropped=request.repetition_dropped,
        promises=request.promises,
        owner=caller.owner,
        for_others=caller.may(Operation.ALTER, Resource.WRITER, request.writer),
    )
    check_proposal(proposal)
    return proposal


def _response(outcome: Outcome, *, aborting: bool) -> DecideResponse:
    standing = outcome.standing
    if standing is None:
        return DecideResponse("aborted" if aborting else "decided")
    decision = Decision(
        standing.version,
        standing.write,
        standing.attempts,
        {topic: TopicShares(part.topic_id, dict(part.records))
         for topic, part in standing.topics.items()},
    )  # fmt: skip
    return DecideResponse(
        "already" if outcome.already or aborting else "unsettled", decision, outcome.compared
    )
