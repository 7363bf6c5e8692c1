"""Requests about atomic writes: prepared and published here, decided by ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from spark_logbus.broker.decided_shares import PartitionShare
from spark_logbus.broker.handlers.handler import Handle, RequestContext
from spark_logbus.broker.handlers.request_metrics import RequestMetrics
from spark_logbus.broker.handlers.work_executor import WorkExecutor
from spark_logbus.broker.network import Answer, Response
from spark_logbus.broker.publisher import Publisher
from spark_logbus.coordination.decisions import DecidedWrite, Outcome, Proposal, TopicRecords
from spark_logbus.coordination.writers import WriterRegistry
from spark_logbus.errors import InvalidRequestError, LogbusError
from spark_logbus.log import DecidedShare, LogDirectory
from spark_logbus.model import TopicPartition
from spark_logbus.protocol import (
    Api,
    DecideRequest,
    DecideResponse,
    Decision,
    DiscardRequest,
    DiscardResponse,
    PrepareRequest,
    PublishRequest,
    ShareResponse,
    ShareResult,
    TopicShares,
    encode_response,
    error_info,
)
from spark_logbus.record.stage_id import MAX_WRITE, parse_attempts, stage_id


class WriteHandler:
    """Answers requests about atomic writes. Thread-safe, keeps nothing between them.

    ``copying`` runs what takes as long as the disk does, ``coordinating`` what waits for
    ZooKeeper, or does not wait.
    """

    def __init__(
        self,
        publisher: Publisher,
        *,
        logs: LogDirectory,
        writers: WriterRegistry,
        copying: WorkExecutor,
        coordinating: WorkExecutor,
        metrics: RequestMetrics,
    ) -> None:
        self._publisher = publisher
        self._logs = logs
        self._writers = writers
        self._copying = copying
        self._coordinating = coordinating
        self._metrics = metrics

    def handlers(self) -> Mapping[Api, Handle]:
        return {
            Api.PREPARE: self.prepare,
            Api.PUBLISH: self.publish,
            Api.DECIDE: self.decide,
            Api.DISCARD: self.discard,
        }

    def prepare(self, request: PrepareRequest, _: RequestContext) -> Answer:
        shares = _shares(request)
        return self._coordinating.run(
            lambda: self._answer(Api.PREPARE, shares, self._publisher.check(shares))
        )

    def publish(self, request: PublishRequest, _: RequestContext) -> Answer:
        shares = _shares(request)
        # One who has waited for too long asks again, while the first is still at it.
        key = (request.write, *(each.topic_partition for each in shares))
        return self._copying.run(
            lambda: self._answer(Api.PUBLISH, shares, self._publisher.publish(shares)), key=key
        )

    def _answer(
        self, api: Api, shares: Sequence[PartitionShare], outcomes: Sequence[LogbusError | None]
    ) -> Response:
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
        return Response(encode_response(ShareResponse(results)))

    def decide(self, request: DecideRequest, _: RequestContext) -> Answer:
        parse_attempts(request.decision.attempts)  # refuse what no broker could publish
        _check_write(request.decision.write)
        if not request.writer:
            raise InvalidRequestError("A decision names the writer; got an empty name.")
        proposal = _proposal(request)
        change: Callable[[str, Proposal], Outcome] = self._writers.decide
        if request.look:
            change = self._writers.look
        elif request.abort:
            change = self._writers.abort

        def decide() -> Response:
            outcome = change(request.writer, proposal)
            return Response(encode_response(_response(outcome, aborting=request.abort)))

        return self._coordinating.run(decide)

    def discard(self, request: DiscardRequest, _: RequestContext) -> Answer:
        write, attempt = request.write, request.attempt
        producer_id = None if attempt is None else stage_id(write, attempt)

        def discard() -> Response:
            if producer_id is None:
                self._logs.ended_writes.add(write)
            for log in self._logs.logs():
                if write in log.staging.decided:
                    continue
                if producer_id is None:
                    log.staging.discard(write)
                else:
                    log.staging.discard_attempt(producer_id)
            return Response(encode_response(DiscardResponse()))

        return self._copying.run(discard)


def _shares(request: PrepareRequest) -> list[PartitionShare]:
    _check_write(request.write)
    attempts = parse_attempts(request.attempts)
    producer_ids = tuple(stage_id(request.write, attempt) for attempt in attempts)
    return [
        PartitionShare(
            TopicPartition(share.topic, share.partition),
            share.topic_id,
            DecidedShare(request.write, producer_ids, share.records),
        )
        for share in request.partitions
    ]


def _check_write(write: int) -> None:
    if not 0 <= write <= MAX_WRITE:
        raise InvalidRequestError(f"A write's number is 0 to {MAX_WRITE}, got {write}.")


def _proposal(request: DecideRequest) -> Proposal:
    decision = request.decision
    topics = {
        topic: TopicRecords(part.topic_id, part.records) for topic, part in decision.topics.items()
    }
    return Proposal(
        DecidedWrite(decision.version, decision.write, decision.attempts, topics),
        run=request.run,
        settled=request.settled,
        once=request.once,
    )


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
    return DecideResponse("already" if outcome.already or aborting else "unsettled", decision)
