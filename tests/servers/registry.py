"""A schema registry's REST service, and a client that asks it as curl would."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spark_logbus.schemas.rest.server import RegistryServer

V1 = "application/vnd.schemaregistry.v1+json"
DEADLINE_S = 60.0


@contextlib.contextmanager
def serving(connect: str) -> Iterator[RegistryServer]:
    server = RegistryServer(zookeeper=connect, host="127.0.0.1", port=0)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@dataclass(frozen=True)
class Answer:
    """``body`` is JSON's value, ``headers`` have names in small letters."""

    status: int
    body: Any
    headers: dict[str, str]

    @property
    def code(self) -> int:
        code: int = self.body["error_code"]
        return code

    @property
    def content_type(self) -> str:
        return self.headers["content-type"]


class Rest:
    """Asks a registry; a body that is not bytes is sent as JSON."""

    def __init__(self, server: RegistryServer) -> None:
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        self.address = (host, int(port))

    def __call__(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        connection = http.client.HTTPConnection(*self.address, timeout=DEADLINE_S)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": V1} if body is not None else {}
        try:
            connection.request(method, path, None if body is None else data, sent | (headers or {}))
            answered = connection.getresponse()
            received = answered.read()
            return Answer(
                answered.status,
                json.loads(received) if received else None,
                {name.lower(): value for name, value in answered.getheaders()},
            )
        finally:
            connection.close()

    def register(self, subject: str, text: str, **more: Any) -> Answer:
        return self("POST", f"/subjects/{subject}/versions", {"schema": text, **more})
