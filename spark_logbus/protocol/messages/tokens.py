"""Tokens, which a driver hands to its tasks."""

from __future__ import annotations

from spark_logbus.protocol.messages.api import Api, Message, declare, nothing
from spark_logbus.security.tokens import Grant

__all__ = ["IssueTokenRequest", "IssueTokenResponse"]


class IssueTokenRequest(Message):
    """``grants`` are what the token is to be good for, ``lifetime_ms`` for how long at most."""

    grants: list[Grant]
    lifetime_ms: int


class IssueTokenResponse(Message):
    """``token`` is empty where brokers ask nobody who they are. ``scope`` differs between tokens
    of different owners or grants, and is no secret."""

    token: bytes
    lifetime_ms: int
    expires_us: int = 0
    scope: str = ""

    def __repr__(self) -> str:
        return f"IssueTokenResponse(lifetime_ms={self.lifetime_ms}, scope={self.scope!r})"


declare(
    Api.ISSUE_TOKEN, IssueTokenRequest, IssueTokenResponse,
    needs=nothing,  # it gives no more than its owner has
    entries=lambda request: request.grants,
)  # fmt: skip
