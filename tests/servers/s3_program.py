"""Program of an S3 server: moto's, which keeps objects in memory, on loopback.

Its own server looks whether an object is there and puts it in two steps, so that of two requests
with ``If-None-Match: *`` for one key at once both may be taken. S3 takes one. Here changes are made
one after the other.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server


class OneChangeAtATime:
    """Lets requests that change nothing pass, and has all others wait for each other."""

    def __init__(self, application: WSGIApplication) -> None:
        self._application = application
        self._lock = threading.Lock()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return self._application(environ, start_response)
        with self._lock:
            return [*self._application(environ, start_response)]


def _main(port: int) -> None:
    application = OneChangeAtATime(DomainDispatcherApplication(create_backend_app))
    server = make_server(
        "127.0.0.1", port, application, threaded=True, request_handler=MotoRequestHandler
    )
    server.serve_forever()


if __name__ == "__main__":
    _main(int(sys.argv[1]))
