"""Tokens: what a driver hands to its tasks, which have no secrets of their own.

A token says for whom it stands, what it is good for, and until when, and is signed with a key that
only brokers have. It never gives more than its owner may do at the time when it is shown.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from spark_logbus.errors import AuthenticationError, InvalidRequestError
from spark_logbus.security.acls import Operation, Resource
from spark_logbus.security.principals import Principal

#: The mechanism by which a token is shown in a handshake.
MECHANISM: Final = "TOKEN"
KEY_BYTES: Final = 32
MAX_TOKEN_BYTES: Final = 3_000
_SIGNATURE_BYTES: Final = 32


class Grant(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A part of what a token is good for: operations on a resource, by name or prefix."""

    resource: str
    name: str
    operations: tuple[str, ...]


class Claims(msgspec.Struct, frozen=True, array_like=True):
    """The contents of a token. ``grants`` None: all that its owner may do. ``mark``: of the owner's
    password when it was given, see ``scram.mark``: another password makes an end of it."""

    key_id: int
    owner: str
    expires_us: Annotated[int, msgspec.Meta(ge=0)]
    grants: list[Grant] | None = None
    mark: bytes = b""


@dataclass(frozen=True, slots=True)
class Scope:
    """The bounds of a token, ready to decide by."""

    expires_us: int
    grants: Sequence[Grant] | None

    def covers(self, operation: Operation, resource: Resource, name: str) -> bool:
        """Tells if the token is good for that."""
        if self.grants is None:
            return True
        return any(
            grant.resource == resource.value
            and operation.value in grant.operations
            and (
                name == grant.name
                or (grant.name.endswith("*") and name.startswith(grant.name[:-1]))
            )
            for grant in self.grants
        )


def new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def sign(claims: Claims, key: bytes) -> bytes:
    """Returns the token. Raises InvalidRequestError for one that is too large."""
    payload = msgspec.msgpack.encode(claims)
    token = hmac.digest(key, payload, "sha256") + payload
    if len(token) > MAX_TOKEN_BYTES:
        raise InvalidRequestError(
            f"A token for that would have {len(token)} bytes, the limit is {MAX_TOKEN_BYTES}; ask "
            "for fewer topics, or for a prefix."
        )
    return token


def verify(
    token: bytes, keys: Mapping[int, bytes], *, now_us: int
) -> tuple[Principal, Scope, bytes]:
    """Returns whose token it is, what it is good for, and the mark of its owner's password then.
    Raises AuthenticationError."""
    signature, payload = token[:_SIGNATURE_BYTES], token[_SIGNATURE_BYTES:]
    if len(token) > MAX_TOKEN_BYTES:
        raise AuthenticationError(f"A token has {MAX_TOKEN_BYTES} bytes at most.")
    # All keys are tried: what the token says of its key is nothing before it is verified.
    if not any(
        hmac.compare_digest(hmac.digest(key, payload, "sha256"), signature) for key in keys.values()
    ):
        raise AuthenticationError(
            "The token is not one that brokers of this cluster gave, or its key is gone since."
        )
    try:
        claims = msgspec.msgpack.decode(payload, type=Claims)
    except msgspec.MsgspecError as error:
        raise AuthenticationError(
            "The token is of a release that this broker does not know."
        ) from error
    if now_us >= claims.expires_us:
        raise AuthenticationError(
            "The token has expired. Long queries renew theirs; check that the clocks of brokers "
            "and drivers agree."
        )
    return Principal.parse(claims.owner), Scope(claims.expires_us, claims.grants), claims.mark
