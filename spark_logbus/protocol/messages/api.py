"""APIs: their numbers, and the declaration of each beside its messages."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

__all__ = [
    "ABOUT_CONNECTION",
    "APIS",
    "PROTOCOL_VERSION",
    "Api",
    "ApiDeclaration",
    "Message",
    "Operation",
    "Resource",
]

PROTOCOL_VERSION: Final = 1
# The API of a frame that answers no request: the broker ends the connection, and says why.
ABOUT_CONNECTION: Final = 0


class Api(enum.IntEnum):
    """The number of each API; they are never reused."""

    HANDSHAKE = 1
    METADATA = 2
    APPEND = 3
    FETCH = 4
    LIST_OFFSETS = 5
    CREATE_TOPIC = 6
    DELETE_TOPIC = 7
    SPLIT_RANGE = 8
    ALTER_TOPIC = 9
    STAGE = 10
    PREPARE = 11
    DECIDE = 12
    PUBLISH = 13
    DISCARD = 14
    REPLICATE = 15
    MOVE = 16
    ELECT = 17
    ELECT_UNCLEAN = 18


class Message(msgspec.Struct, omit_defaults=True):
    """Base of all messages."""


class Operation(enum.Enum):
    """An access right that a request needs; the words are Kafka's."""

    READ = "read"
    WRITE = "write"
    CREATE = "create"
    ALTER = "alter"
    DELETE = "delete"
    DESCRIBE = "describe"


class Resource(enum.Enum):
    """The kind of thing on which a request needs its right."""

    CLUSTER = "cluster"
    TOPIC = "topic"


@dataclass(frozen=True, slots=True)
class ApiDeclaration:
    """One API.

    ``entries`` are the topics or partitions that a request names, of which a broker bounds the
    number; None: it names no list of them. ``answered``: the client waits for a response.
    """

    request: type[Message]
    response: type[Message]
    operation: Operation | None
    resource: Resource | None
    entries: Callable[[Any], Sized | None]
    answered: Callable[[Any], bool]


APIS: Final[dict[Api, ApiDeclaration]] = {}

R = TypeVar("R", bound=Message)


def _no_entries(_: Message) -> None:
    return None


def _always(_: Message) -> bool:
    return True


def declare(
    api: Api,
    request: type[R],
    response: type[Message],
    *,
    operation: Operation | None,
    resource: Resource | None,
    entries: Callable[[R], Sized | None] = _no_entries,
    answered: Callable[[R], bool] = _always,
) -> None:
    """Enter an API into ``APIS``. Only a handshake needs no right on anything."""
    assert api not in APIS, f"{api!r} is declared twice"
    APIS[api] = ApiDeclaration(request, response, operation, resource, entries, answered)
