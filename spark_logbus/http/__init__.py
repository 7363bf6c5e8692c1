"""The HTTP server of metrics and health, and of what else is to be had by HTTP: see
docs/adr/0019-http.md."""

from spark_logbus.http.routes import Handler, HttpError, Request, Response, Routes
from spark_logbus.http.server import HttpServer, TlsContexts

__all__ = ["Handler", "HttpError", "HttpServer", "Request", "Response", "Routes", "TlsContexts"]
