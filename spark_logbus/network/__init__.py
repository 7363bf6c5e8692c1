"""Connections: frames in, responses out, within limits on threads, memory and descriptors.

``Network`` hands each request to one function and sends the ``Response``, or the
``DelayedResponse`` when it is there. It knows neither what a request means nor partitions: of the
log, only the slice of a file that goes out with ``sendfile``.
"""

from spark_logbus.network.connection import Connection
from spark_logbus.network.responses import (
    Answer,
    DelayedResponse,
    FileHandover,
    NoResponse,
    NotYet,
    Response,
)
from spark_logbus.network.server import Network, TlsPort
from spark_logbus.network.sockets import allow_descriptors, is_out_of_room, listen

__all__ = [
    "Answer",
    "Connection",
    "DelayedResponse",
    "FileHandover",
    "Network",
    "NoResponse",
    "NotYet",
    "Response",
    "TlsPort",
    "allow_descriptors",
    "is_out_of_room",
    "listen",
]
