"""A catalogue of Iceberg tables behind the format's REST protocol, on loopback, for tests.

It has as much of the protocol as loads use, and keeps its tables in a SQL catalogue. What a commit
requires is checked there, on the newest version, as the protocol asks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flask import Flask, Response, request
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest, Table
from werkzeug.serving import make_server

TOKEN = "a secret token"
_SEPARATOR = "\x1f"  # between the levels of a namespace
_ERRORS: dict[type[Exception], int] = {
    CommitFailedException: 409,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
}


@dataclass
class IcebergRest:
    """A running server; ``uri`` is where it answers."""

    uri: str
    #: Called after each commit, before the answer; what it returns is the answer's status.
    after_commit: Callable[[], int] = field(default=lambda: 200)

    @property
    def properties(self) -> dict[str, str]:
        """Properties of the catalogue, as ``pyiceberg`` names them."""
        return {"type": "rest", "uri": self.uri, "token": TOKEN}


@contextmanager
def iceberg_rest(
    directory: Path, warehouse: str, storage: dict[str, str] | None = None
) -> Iterator[IcebergRest]:
    """Runs a server whose tables are in ``warehouse``, a location that ``storage`` opens."""
    catalog = SqlCatalog(
        "rest", uri=f"sqlite:///{directory}/rest.db", warehouse=warehouse, **(storage or {})
    )
    made = IcebergRest("")
    app = _application(catalog, made)
    server = make_server("127.0.0.1", 0, app)
    made.uri = f"http://127.0.0.1:{server.port}"
    thread = threading.Thread(target=server.serve_forever, name="iceberg-rest")
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        catalog.engine.dispose()


def _application(catalog: SqlCatalog, server: IcebergRest) -> Flask:
    app = Flask(__name__)

    @app.before_request
    def authorize() -> tuple[dict[str, Any], int] | None:
        if request.headers.get("Authorization") == f"Bearer {TOKEN}":
            return None
        return _error(PermissionError("The token is not known."), 401)

    @app.errorhandler(Exception)
    def failed(error: Exception) -> tuple[dict[str, Any], int]:
        return _error(error, _ERRORS.get(type(error), 400))

    @app.get("/v1/config")
    def config() -> dict[str, Any]:
        return {"defaults": {}, "overrides": {}}

    @app.post("/v1/namespaces")
    def create_namespace() -> dict[str, Any]:
        catalog.create_namespace(tuple(request.json["namespace"]))
        return {"namespace": request.json["namespace"], "properties": {}}

    @app.get("/v1/namespaces/<namespace>")
    def load_namespace(namespace: str) -> dict[str, Any]:
        name = tuple(namespace.split(_SEPARATOR))
        return {"namespace": name, "properties": catalog.load_namespace_properties(name)}

    @app.post("/v1/namespaces/<namespace>/tables")
    def create_table(namespace: str) -> Response:
        # Clients leave the location out, and the library's own type asks for it.
        asked = CreateTableRequest.model_validate({"location": None, **request.json})
        table = catalog.create_table(
            (*namespace.split(_SEPARATOR), asked.name),
            asked.table_schema,
            partition_spec=asked.partition_spec or UNPARTITIONED_PARTITION_SPEC,
            properties=asked.properties,
        )
        return _answer(table)

    @app.get("/v1/namespaces/<namespace>/tables/<table>")
    def load_table(namespace: str, table: str) -> Response:
        return _answer(catalog.load_table((*namespace.split(_SEPARATOR), table)))

    @app.post("/v1/namespaces/<namespace>/tables/<table>")
    def commit(namespace: str, table: str) -> Response | tuple[dict[str, Any], int]:
        asked = CommitTableRequest.model_validate_json(request.data)
        known = catalog.load_table((*namespace.split(_SEPARATOR), table))
        catalog.commit_table(known, asked.requirements, asked.updates)
        status = server.after_commit()
        if status != 200:
            return _error(RuntimeError("The answer went astray."), status)
        return _answer(catalog.load_table(known.name()))

    return app


def _answer(table: Table) -> Response:
    metadata = table.metadata.model_dump_json()
    text = f'{{"metadata-location": "{table.metadata_location}", "metadata": {metadata}}}'
    return Response(text, content_type="application/json")


def _error(error: Exception, code: int) -> tuple[dict[str, Any], int]:
    told = {"message": str(error), "type": type(error).__name__, "code": code}
    return {"error": told}, code
