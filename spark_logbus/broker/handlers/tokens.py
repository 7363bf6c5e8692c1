"""The request for a token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from spark_logbus.broker.handlers.handler import Handle, RequestContext
from spark_logbus.broker.security.known import SecurityState
from spark_logbus.errors import InvalidRequestError, NotAuthorizedError
from spark_logbus.network import Answer, Response
from spark_logbus.protocol import Api, IssueTokenRequest, IssueTokenResponse, encode_response
from spark_logbus.security.acls import Operation, Resource
from spark_logbus.security.tokens import Claims, scope_id

_LEAST_MS: Final = 1_000
_KINDS: Final = {each.value for each in Resource}
_OPERATIONS: Final = {each.value for each in Operation}


class TokenHandler:
    """Gives tokens to principals that are known by more than a token. Thread-safe."""

    def __init__(
        self, state: SecurityState | None, *, now_us: Callable[[], int], max_ms: int
    ) -> None:
        self._state = state
        self._now_us = now_us
        self._max_ms = max_ms

    def handlers(self) -> Mapping[Api, Handle]:
        return {Api.ISSUE_TOKEN: self.handle}

    def handle(self, request: IssueTokenRequest, context: RequestContext) -> Answer:
        identity = context.connection.identity
        if self._state is None:  # nobody is asked, and needs one
            return Response(encode_response(IssueTokenResponse(b"", self._max_ms)))
        if identity.scope is not None or identity.principal.kind == "anonymous":
            raise NotAuthorizedError(
                f"{identity.principal} is known by no more than a token or nothing here, and gets "
                "no other token: log in as a user, or show a certificate."
            )
        for grant in request.grants:
            unknown = {grant.resource} - _KINDS or {*grant.operations} - _OPERATIONS
            if unknown:
                raise InvalidRequestError(
                    f"A token cannot be for {sorted(unknown)[0]!r}, which is no kind of resource "
                    "and no operation."
                )
        lifetime_ms = min(request.lifetime_ms, self._max_ms)
        if lifetime_ms < _LEAST_MS:
            raise InvalidRequestError(
                f"A token lasts for {_LEAST_MS} ms at least, got {request.lifetime_ms}."
            )
        owner, mark = str(identity.principal), identity.mark
        expires_us = self._now_us() + lifetime_ms * 1_000
        token = self._state.token(
            lambda key_id: Claims(key_id, owner, expires_us, list(request.grants), mark)
        )
        scope = scope_id(owner, request.grants)
        answer = IssueTokenResponse(token, lifetime_ms, expires_us, scope)
        return Response(encode_response(answer))
