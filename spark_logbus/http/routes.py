"""From a request to its handler, and from an error to a response. Pure."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self
from urllib.parse import unquote

from spark_logbus.errors import LogbusError

logger = logging.getLogger(__name__)

_RETRY_AFTER_S = 1


@dataclass(frozen=True, slots=True)
class Request:
    """``parameters`` are those of the route's path, ``query`` what stands behind the path, and
    ``headers`` have names in small letters.

    ``address`` is the client's, ``certificate`` the one that it has shown, as DER, which was
    checked. ``caller`` is whom a handler takes it for, whatever that finds out.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)
    parameters: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # passwords are in them
    address: str = ""
    certificate: bytes | None = field(default=None, repr=False)
    caller: Any = None

    def json(self) -> Any:
        """The body. Raises HttpError (400) when it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise HttpError(400, f"The body is not JSON: {error}.") from error


@dataclass(frozen=True, slots=True)
class Response:
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, value: object, *, status: int = 200) -> Self:
        return cls((json.dumps(value) + "\n").encode(), "application/json", status)


class HttpError(Exception):
    """A response that is an error: ``{"error_code": ..., "message": ...}``. The code is the status
    unless a handler distinguishes more cases. With 503 it says when to ask again."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = status if code is None else code
        asked_again = {"Retry-After": str(_RETRY_AFTER_S)} if status == 503 else {}
        self.headers = {**asked_again, **(headers or {})}

    def response(self) -> Response:
        body = {"error_code": self.code, "message": self.message}
        return replace(Response.json(body, status=self.status), headers=self.headers)


Handler = Callable[[Request], Response]
Describe = Callable[[Request, LogbusError], HttpError]


def _plainly(request: Request, error: LogbusError) -> HttpError:
    return HttpError(_status_of(error), error.message)


class Routes:
    """Handlers by method and path: ``{"GET /subjects/{subject}": handler}``. Thread-safe.

    A name in braces takes one segment of the path, percent-decoded, into ``Request.parameters``.
    The first route that fits is taken. A slash at the end of a path makes no difference. ``HEAD``
    is answered by the handler of ``GET``, ``OPTIONS`` by the methods that there are.

    ``describe`` says how an error of a handler is told, where status and message are not enough;
    ``content_type`` says in which type, if clients expect another one than JSON's; it gets None
    for what was not understood as a request.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        describe: Describe = _plainly,
        content_type: Callable[[Request | None], str] = lambda _: "application/json",
    ) -> None:
        self._describe = describe
        self._content_type = content_type
        self._routes = [
            (method, path.split("/"), handler)
            for (method, path), handler in ((key.split(" ", 1), f) for key, f in handlers.items())
        ]

    def answer(self, request: Request) -> Response:
        """Call the handler; HttpError, LogbusError and bugs become their responses."""
        try:
            handler, parameters = self._find(request)
            return handler(replace(request, parameters=parameters))
        except HttpError as error:
            return self.refusal(error, request)
        except LogbusError as error:
            return self.refusal(self._describe(request, error), request)
        except Exception:
            logger.exception("%s %s could not be answered.", request.method, request.path)
            failure = HttpError(500, "The answer could not be made; see the log.")
            return self.refusal(failure, request)

    def refusal(self, error: HttpError, request: Request | None = None) -> Response:
        """The response that an error is, also to a request that was not understood."""
        return replace(error.response(), content_type=self._content_type(request))

    def _find(self, request: Request) -> tuple[Handler, dict[str, str]]:
        method = "GET" if request.method == "HEAD" else request.method
        segments = _without_slash(request.path).split("/")
        allowed: list[str] = []
        for route_method, pattern, handler in self._routes:
            parameters = _match(pattern, segments)
            if parameters is None:
                continue
            if route_method == method:
                return handler, parameters
            allowed += [route_method, "HEAD"] if route_method == "GET" else [route_method]
        if allowed:
            allowed.append("OPTIONS")
            if method == "OPTIONS":
                headers = {"Allow": ", ".join(allowed)}
                return lambda _: Response(b"", self._content_type(request), headers=headers), {}
            message = f"{request.path} answers {', '.join(allowed)} only."
            raise HttpError(405, message, headers={"Allow": ", ".join(allowed)})
        known = ", ".join(sorted({"/".join(pattern) for _, pattern, _ in self._routes}))
        raise HttpError(404, f"There is no {request.path} here. There are: {known}.")


def _without_slash(path: str) -> str:
    return path if path == "/" else path.removesuffix("/")


def _match(pattern: list[str], segments: list[str]) -> dict[str, str] | None:
    if len(pattern) != len(segments):
        return None
    parameters = {}
    for wanted, segment in zip(pattern, segments, strict=True):
        if wanted.startswith("{"):
            parameters[wanted[1:-1]] = unquote(segment)
        elif wanted != segment:
            return None
    return parameters


def _status_of(error: LogbusError) -> int:
    if error.retriable:
        return 503
    return 400 if error.fault == "caller" else 500
