"""The dispatcher, from a frame to the handler of its API."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from spark_logbus.broker.handlers.handler import Handle, Handler, RequestContext
from spark_logbus.broker.handlers.request_metrics import RequestMetrics
from spark_logbus.broker.security.authorization import Authorization
from spark_logbus.errors import AuthenticationError, InvalidRequestError, LogbusError
from spark_logbus.network import Answer, Connection, DelayedResponse, NoResponse, Response
from spark_logbus.protocol import (
    APIS,
    Api,
    Frame,
    Message,
    check_api,
    decode_request,
    encode_error,
)

logger = logging.getLogger(__name__)


class RequestDispatcher:
    """Decodes requests and calls their handlers. Thread-safe.

    Errors of a request become its response; only bugs escape as exceptions.

    ``refusal``: set it to have all requests but handshakes answered with that error.
    """

    def __init__(
        self,
        handlers: Iterable[Handler],
        *,
        max_entries: int,
        metrics: RequestMetrics,
        authorization: Authorization | None = None,
    ) -> None:
        self._handles: dict[Api, Handle] = {}
        for handler in handlers:
            self._handles.update(handler.handlers())
        assert set(self._handles) == set(Api), "every API has a handler"
        self._max_entries = max_entries
        self._metrics = metrics
        self._authorization = authorization
        self.refusal: LogbusError | None = None

    def dispatch(self, connection: Connection, frame: Frame) -> Answer:
        began = self._metrics.now()
        api: Api | None = None
        answered = True
        guard: Callable[[], Response | None] | None = None
        try:
            api = check_api(frame.api, frame.version)
            request = decode_request(api, frame.header)
            answered = APIS[api].answered(request)
            rules = self._authorization
            seen = 0 if rules is None else rules.version  # before it is checked by them
            self._check(connection, api, request)
            answer = self._handles[api](request, RequestContext(connection, frame.payload))
            # Others than fetches are done or under way: what becomes of them is told.
            if rules is not None and api is Api.FETCH:
                guard = rules.guard(connection, api, request, seen=seen)
        except LogbusError as error:
            logger.debug(
                "A request of %s was refused: %s",
                connection.peer, error, extra={"peer": connection.peer},
            )  # fmt: skip
            self._metrics.failed(api, error)
            if isinstance(error, AuthenticationError):
                connection.end_when_answered()
            answer = Response(encode_error(error)) if answered else NoResponse.CLOSE_CONNECTION
        answer = self._metrics.answered(api, answer, began)
        if isinstance(answer, DelayedResponse):
            answer.guard = guard
        return answer

    def _check(self, connection: Connection, api: Api, request: Message) -> None:
        """Refuse what no handler is to see."""
        if api is Api.HANDSHAKE:
            return
        if not connection.handshaken:
            raise InvalidRequestError("The first request of a connection must be a handshake.")
        if self.refusal is not None:
            raise self.refusal.again()
        entries = APIS[api].entries(request)
        if entries is not None and len(entries) > self._max_entries:
            raise InvalidRequestError(
                f"A request names {len(entries)} partitions or topics, the limit is "
                f"{self._max_entries} (max_partitions_per_request); ask in several requests."
            )
        if self._authorization is not None:
            self._authorization.check(connection, api, request)
