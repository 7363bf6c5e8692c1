"""Requests about partitions that nobody who is in sync can lead: what is here of them, and to lead
them all the same."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

from spark_logbus.broker.handlers.handler import Handle, RequestContext
from spark_logbus.broker.handlers.work_executor import WorkExecutor
from spark_logbus.broker.replica.unclean import UncleanElections
from spark_logbus.clock import Clock
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.errors import BrokerUnavailableError, InvalidRequestError, LogbusError
from spark_logbus.model import TopicPartition
from spark_logbus.network import Answer, Response
from spark_logbus.protocol import (
    Api,
    UncleanElectRequest,
    UncleanElectResponse,
    UncleanElectResult,
    encode_response,
    error_info,
)
from spark_logbus.retry import Deadline

# Some writes to ZooKeeper for each, one after the other.
_WAIT_MS = 20_000


class UncleanElectHandler:
    """Answers the requests. Thread-safe, keeps nothing."""

    def __init__(
        self, elections: UncleanElections, *, clock: Clock, executor: WorkExecutor
    ) -> None:
        self._elections = elections
        self._clock = clock
        self._executor = executor

    def handlers(self) -> Mapping[Api, Handle]:
        return {Api.ELECT_UNCLEAN: self.elect}

    def elect(self, request: UncleanElectRequest, _: RequestContext) -> Answer:
        if len({*request.partitions}) < len(request.partitions):
            raise InvalidRequestError(
                f"A request for an unclean election names a partition of {request.topic} twice."
            )
        if len(request.epochs) not in (0, len(request.partitions)):
            raise InvalidRequestError(
                f"A request for an unclean election has {len(request.epochs)} leader epochs for "
                f"{len(request.partitions)} partitions of {request.topic}: as many, or none."
            )
        return self._executor.run(lambda: self._answer(request))

    def _answer(self, request: UncleanElectRequest) -> Response:
        deadline = Deadline.after_ms(self._clock, _WAIT_MS)
        found = self._elections.look(request.topic, request.partitions, request.topic_id)
        errors = {each: candidate.problem for each, candidate in found.items()}
        asked = {
            partition: self._elections.ask(
                TopicPartition(request.topic, partition), request.topic_id, epoch
            )
            for partition, epoch in zip(request.partitions, request.epochs, strict=False)
            if errors[partition] is None
        }
        for partition, done in asked.items():
            errors[partition] = _outcome(done, deadline)
        results = [
            UncleanElectResult(
                partition,
                found[partition].standing,
                None if (error := errors[partition]) is None else error_info(error),
            )
            for partition in request.partitions
        ]
        return Response(encode_response(UncleanElectResponse(results)))


def _outcome(done: Future[PartitionState], deadline: Deadline) -> LogbusError | None:
    """Waits for an election; returns the reason why there was none, if there is one."""
    try:
        done.result(deadline.remaining_s)
    except LogbusError as error:
        return error
    except TimeoutError:
        begun = not done.cancel()
        return BrokerUnavailableError(
            "The election was not done in time" + ("; it may be done still." if begun else ".")
        )
    return None
