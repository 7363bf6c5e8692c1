"""APIs: their numbers, and the declaration of each beside its messages."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from spark_logbus.security.acls import Operation, Resource

__all__ = [
    "ABOUT_CONNECTION",
    "APIS",
    "PROTOCOL_VERSION",
    "Api",
    "ApiDeclaration",
    "Message",
    "Need",
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
    ISSUE_TOKEN = 19


class Message(msgspec.Struct, omit_defaults=True):
    """Base of all messages."""


#: An operation on the resource of that kind and name, which a request asks for.
Need = tuple[Operation, Resource, str]


@dataclass(frozen=True, slots=True)
class ApiDeclaration:
    """One API.

    ``needs`` are the rights that a request needs; None: none but brokers of the cluster may send
    it. ``entries`` are the topics or partitions that it names, of which a broker bounds the number;
    None: it names no list of them. ``answered``: the client waits for a response.
    """

    request: type[Message]
    response: type[Message]
    needs: Callable[[Any], Iterable[Need]] | None
    entries: Callable[[Any], Sized | None]
    answered: Callable[[Any], bool]


APIS: Final[dict[Api, ApiDeclaration]] = {}

R = TypeVar("R", bound=Message)


def _no_entries(_: Message) -> None:
    return None


def _always(_: Message) -> bool:
    return True


def nothing(_: Message) -> Iterable[Need]:
    """The needs of a handshake, and of requests whose handlers look at each part by itself."""
    return ()


def of_partitions(operation: Operation) -> Callable[[Any], Iterable[Need]]:
    """The need of that operation on the topic of each of a request's ``partitions``."""

    def needs(request: Any) -> Iterable[Need]:
        if len(request.partitions) == 1:  # as most have, and it takes a third of the time
            return [(operation, Resource.TOPIC, request.partitions[0].topic)]
        topics = dict.fromkeys(each.topic for each in request.partitions)
        return [(operation, Resource.TOPIC, topic) for topic in topics]

    return needs


def on_cluster(operation: Operation) -> Callable[[Any], Iterable[Need]]:
    """The need of that operation on the cluster."""
    need = (operation, Resource.CLUSTER, "*")
    return lambda _: (need,)


def declare(
    api: Api,
    request: type[R],
    response: type[Message],
    *,
    needs: Callable[[R], Iterable[Need]] | None,
    entries: Callable[[R], Sized | None] = _no_entries,
    answered: Callable[[R], bool] = _always,
) -> None:
    """Enter an API into ``APIS``."""
    assert api not in APIS, f"{api!r} is declared twice"
    APIS[api] = ApiDeclaration(request, response, needs, entries, answered)
