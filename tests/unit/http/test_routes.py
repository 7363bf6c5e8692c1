from __future__ import annotations

import json
import logging

import pytest

from spark_logbus.errors import BrokerUnavailableError, LogbusError, StorageError, UnknownTopicError
from spark_logbus.http import HttpError, Request, Response, Routes


def show(request: Request) -> Response:
    return Response.json(dict(request.parameters))


ROUTES = Routes(
    {
        "GET /": lambda _: Response(b"root"),
        "GET /subjects": lambda _: Response(b"subjects"),
        "GET /subjects/latest": lambda _: Response(b"latest"),
        "GET /subjects/{subject}": show,
        "DELETE /subjects/{subject}": lambda _: Response(b"deleted"),
        "GET /subjects/{subject}/versions/{version}": show,
        "POST /json": lambda request: Response.json(request.json()),
    }
)


def answer(path: str, method: str = "GET", body: bytes = b"") -> tuple[int, bytes]:
    response = ROUTES.answer(Request(method, path, body=body))
    return response.status, response.body


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/", b"root"),
        ("HEAD", "/", b"root"),
        ("GET", "/subjects", b"subjects"),
        ("GET", "/subjects/latest", b"latest"),
        ("GET", "/subjects/a", b'{"subject": "a"}\n'),
        ("GET", "/subjects/a%2Fb%20", b'{"subject": "a/b "}\n'),
        ("DELETE", "/subjects/a", b"deleted"),
        ("GET", "/subjects/", b"subjects"),
        ("DELETE", "/subjects/a/", b"deleted"),
        ("GET", "/subjects/a/versions/2", b'{"subject": "a", "version": "2"}\n'),
    ],
)
def test_a_request_finds_its_handler(method: str, path: str, body: bytes) -> None:
    assert answer(path, method) == (200, body)


@pytest.mark.parametrize("path", ["", "/subject", "/subjects/a/versions", "/subjects/a/b/c/d"])
def test_an_unknown_path_is_told_the_known_ones(path: str) -> None:
    status, body = answer(path)
    assert status == 404
    assert json.loads(body)["error_code"] == 404
    assert "/subjects/{subject}" in json.loads(body)["message"]


def test_another_method_is_told_the_allowed_ones() -> None:
    response = ROUTES.answer(Request("POST", "/subjects/a"))
    assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD, DELETE, OPTIONS")
    asked = ROUTES.answer(Request("OPTIONS", "/subjects/a"))
    assert (asked.status, asked.headers, asked.body) == (200, response.headers, b"")


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_json(body: bytes) -> None:
    assert answer("/json", "POST", b'{"a": [1]}') == (200, b'{"a": [1]}\n')
    assert answer("/json", "POST", body)[0] == 400


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (HttpError(404, "Subject not found.", code=40401), 404, 40401),
        (HttpError(422, "m"), 422, 422),
        (UnknownTopicError("m"), 400, 400),
        (BrokerUnavailableError("m"), 503, 503),
        (StorageError("m"), 500, 500),
        (KeyError("a secret"), 500, 500),
    ],
)
def test_an_error_has_its_response(
    error: Exception, status: int, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(request: Request) -> Response:
        raise error

    with caplog.at_level(logging.CRITICAL):
        response = Routes({"GET /": fail}).answer(Request("GET", "/"))
    body = json.loads(response.body)
    assert (response.status, body["error_code"]) == (status, code)
    if isinstance(error, HttpError | LogbusError):
        assert body["message"] == error.message
    else:
        assert "secret" not in body["message"]


def test_errors_are_told_as_the_service_wants() -> None:
    def describe(request: Request, error: LogbusError) -> HttpError:
        return HttpError(404, f"{request.path}: {error.message}", code=40401)

    def fail(request: Request) -> Response:
        raise UnknownTopicError("There is none.")

    def kind(request: Request | None) -> str:
        return "application/vnd.x+json" if request is None else f"application/{request.method}"

    routes = Routes({"GET /a": fail}, describe=describe, content_type=kind)
    told = routes.answer(Request("GET", "/a"))
    assert (told.status, told.content_type) == (404, "application/GET")
    assert json.loads(told.body) == {"error_code": 40401, "message": "/a: There is none."}
    for request in (Request("GET", "/b"), Request("PUT", "/a"), Request("OPTIONS", "/a")):
        assert routes.answer(request).content_type == f"application/{request.method}"
    assert routes.refusal(HttpError(413, "m")).content_type == "application/vnd.x+json"
