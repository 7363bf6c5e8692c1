"""Tokens: what a driver hands to its tasks, which have no secrets of their own.

A token says for whom it stands, what it is good for, and until when, and is signed with a key that
only brokers have. It never gives more than its owner may do at the time when it is shown.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
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
# Left for all but the grants: the signature, and an owner with a long name.
_GRANTS_BYTES: Final = MAX_TOKEN_BYTES - 600
# Of what a token unpacks to, which every connection that is begun with it keeps: what repeats
# itself takes next to nothing in the token.
_MAX_GRANTS: Final = 2_000
_MAX_UNPACKED_BYTES: Final = 1 << 20
# Whoever may do one of these may know that the thing is there, as with access rules.
_IMPLY_DESCRIBE: Final = frozenset({"read", "write", "alter", "delete"})


class Grant(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A part of what a token is good for: operations on a resource, by name or prefix with ``*``.
    Who may read, write, alter or delete it may also describe it."""

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


class Scope:
    """The bounds of a token, made ready to decide by. Immutable."""

    def __init__(self, expires_us: int, grants: Iterable[Grant] | None) -> None:
        self.expires_us: Final = expires_us
        self._is_bounded: Final = grants is not None
        self._literal: dict[tuple[str, str], set[str]] = {}
        self._prefixed: dict[tuple[str, str], set[str]] = {}
        for grant in grants or ():
            operations = {*grant.operations}
            if operations & _IMPLY_DESCRIBE:
                operations.add(Operation.DESCRIBE.value)
            if grant.name.endswith("*"):
                for each in operations:
                    prefixes = self._prefixed.setdefault((grant.resource, each), set())
                    prefixes.add(grant.name[:-1])
            else:
                self._literal.setdefault((grant.resource, grant.name), set()).update(operations)

    def covers(self, operation: Operation, resource: Resource, name: str) -> bool:
        """Tells if the token is good for that."""
        if not self._is_bounded:
            return True
        if operation.value in self._literal.get((resource.value, name), ()):
            return True
        prefixes = self._prefixed.get((resource.value, operation.value), ())
        return any(name.startswith(each) for each in prefixes)


def grants_on_topics(topics: Iterable[str], operations: Sequence[str]) -> tuple[Grant, ...]:
    """Returns grants of the operations on the topics, as few as fit into a token.

    Some hundred topics fit by name, as names that resemble each other take little room. Of more,
    names are cut to prefixes, as long as possible: the token is then also good for other topics
    that begin so, but never for one that its owner may not use.
    """
    names = sorted({*topics})

    def cut(length: int) -> tuple[Grant, ...]:
        kept = {each if len(each) <= length else f"{each[:length]}*" for each in names}
        return tuple(Grant("topic", each, (*operations,)) for each in sorted(kept))

    longest = max(map(len, names), default=0)
    if fits(whole := cut(longest)):
        return whole
    too_long = bisect_left(range(longest), True, key=lambda length: not fits(cut(length)))
    return cut(too_long - 1)


def fits(grants: Sequence[Grant]) -> bool:
    """Tells if a token can have all of these."""
    return len(grants) <= _MAX_GRANTS and len(_packed(grants)) <= _GRANTS_BYTES


def scope_id(owner: str, grants: Sequence[Grant]) -> str:
    """Returns what tells tokens of different owners or grants apart; nothing in it is secret."""
    packed = msgspec.msgpack.encode((owner, sorted(grants)))
    return hashlib.blake2b(packed, digest_size=16).hexdigest()


def new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def sign(claims: Claims, key: bytes) -> bytes:
    """Returns the token. Raises InvalidRequestError for one that is too large."""
    if len(claims.grants or ()) > _MAX_GRANTS or len(_unpacked(claims)) > _MAX_UNPACKED_BYTES:
        raise InvalidRequestError(
            f"A token is good for {_MAX_GRANTS} resources at most, of {_MAX_UNPACKED_BYTES} bytes; "
            "ask for fewer topics, or for a prefix."
        )
    payload = _packed(claims)
    token = hmac.digest(key, payload, "sha256") + payload
    if len(token) > MAX_TOKEN_BYTES:
        raise InvalidRequestError(
            f"A token for that would have {len(token)} bytes, the limit is {MAX_TOKEN_BYTES}; ask "
            "for fewer topics, or for a prefix."
        )
    return token


def _packed(value: object) -> bytes:
    return zlib.compress(_unpacked(value), 9)


def _unpacked(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


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
        # Nobody but a broker can have signed it, so it does not unpack to more than fits in memory.
        claims = msgspec.msgpack.decode(zlib.decompress(payload), type=Claims)
    except (msgspec.MsgspecError, zlib.error) as error:
        raise AuthenticationError(
            "The token is of a release that this broker does not know."
        ) from error
    if now_us >= claims.expires_us:
        raise AuthenticationError(
            "The token of this task has expired. Streams get another one for each micro-batch; for "
            "a batch job that lasts longer than its token, load the data again, have brokers give "
            "longer ones ([security] token_max_ms), and check that their clocks agree."
        )
    return Principal.parse(claims.owner), Scope(claims.expires_us, claims.grants), claims.mark
