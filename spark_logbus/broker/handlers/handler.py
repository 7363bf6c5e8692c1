"""The shape of handlers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from spark_logbus.network import Answer, Connection
from spark_logbus.protocol import Api


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The origin of a request, and its payload, which is the caller's again when the handler
    returns."""

    connection: Connection
    payload: memoryview


#: Called with the decoded request. A LogbusError that it raises becomes the response.
Handle = Callable[[Any, RequestContext], Answer]


class Handler(Protocol):
    """Answers one API, or a few that belong together. Thread-safe."""

    def handlers(self) -> Mapping[Api, Handle]: ...
