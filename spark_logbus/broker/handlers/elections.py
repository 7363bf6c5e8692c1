"""Requests to give partitions to their preferred leaders."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

from spark_logbus.broker.handlers.handler import Handle, RequestContext
from spark_logbus.broker.handlers.work_executor import WorkExecutor
from spark_logbus.broker.replica.preferred_leaders import PreferredLeaders, outcome
from spark_logbus.clock import Clock
from spark_logbus.errors import InvalidRequestError, LogbusError
from spark_logbus.model import TopicPartition
from spark_logbus.network import Answer, Response
from spark_logbus.protocol import (
    Api,
    ElectRequest,
    ElectResponse,
    ElectResult,
    encode_response,
    error_info,
)
from spark_logbus.retry import Deadline

# Longer than a hand-over is tried; the answer says what came of it.
_WAIT_MS = 6_000


class ElectHandler:
    """Answers the requests. Thread-safe, keeps nothing."""

    def __init__(
        self, preferred_leaders: PreferredLeaders, *, clock: Clock, executor: WorkExecutor
    ) -> None:
        self._preferred_leaders = preferred_leaders
        self._clock = clock
        self._executor = executor

    def handlers(self) -> Mapping[Api, Handle]:
        return {Api.ELECT: self.elect}

    def elect(self, request: ElectRequest, _: RequestContext) -> Answer:
        if len({*request.partitions}) < len(request.partitions):
            raise InvalidRequestError(
                f"A request to elect leaders names a partition of {request.topic} twice."
            )

        def elect() -> Response:
            deadline = Deadline.after_ms(self._clock, _WAIT_MS)
            asked = {each: self._ask(request, each) for each in request.partitions}
            results = []
            for partition, done in asked.items():
                error = done if isinstance(done, LogbusError) else outcome(done, deadline)
                info = None if error is None else error_info(error)
                results.append(ElectResult(partition, done=done is None, error=info))
            return Response(encode_response(ElectResponse(results)))

        return self._executor.run(elect)

    def _ask(self, request: ElectRequest, partition: int) -> Future[None] | LogbusError | None:
        where = TopicPartition(request.topic, partition)
        try:
            return self._preferred_leaders.elect(where, request.topic_id)
        except LogbusError as error:
            return error
