"""Requests and responses: bytes in, values out; no sockets (sans-IO). Symmetric for both ends.

The public names are those that the modules list in ``__all__``.
"""

from spark_logbus.protocol.codec import *
from spark_logbus.protocol.frames import *
from spark_logbus.protocol.messages import *
