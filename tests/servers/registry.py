"""A schema registry's REST service, and a client that asks it as curl would."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spark_logbus.schemas.rest.access import RegistrySecurity
from spark_logbus.schemas.rest.server import RegistryServer

V1 = "application/vnd.schemaregistry.v1+json"
DEADLINE_S = 60.0


@contextlib.contextmanager
def serving(connect: str, security: RegistrySecurity | None = None) -> Iterator[RegistryServer]:
    server = RegistryServer(zookeeper=connect, host="127.0.0.1", port=0, security=security)
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
    """Asks a registry; a body that is not bytes is sent as JSON. ``trust`` is for one that
    encrypts, ``login`` a user and a password."""

    def __init__(
        self,
        server: RegistryServer,
        *,
        trust: ssl.SSLContext | None = None,
        login: tuple[str, str] | None = None,
    ) -> None:
        host, _, port = server.url.partition("://")[2].rpartition(":")
        self.address = (host, int(port))
        self._trust = trust
        self._login = {} if login is None else {"Authorization": basic(*login)}

    def __call__(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        connection = self._connection()
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": V1} if body is not None else {}
        try:
            sent |= self._login | (headers or {})
            connection.request(method, path, None if body is None else data, sent)
            answered = connection.getresponse()
            received = answered.read()
            return Answer(
                answered.status,
                json.loads(received) if received else None,
                {name.lower(): value for name, value in answered.getheaders()},
            )
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self._trust is None:
            return http.client.HTTPConnection(*self.address, timeout=DEADLINE_S)
        return http.client.HTTPSConnection(*self.address, timeout=DEADLINE_S, context=self._trust)

    def register(self, subject: str, text: str, **more: Any) -> Answer:
        return self("POST", f"/subjects/{subject}/versions", {"schema": text, **more})


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
