"""Requests and responses: one struct per message, MessagePack on the wire.

Fields are named, so a newer peer may add one without breaking an older; unknown fields are
ignored and missing ones take their default. Numbers are bounded where they are checked, not
here. Payloads (record batches) follow the header in the order of the ``length`` fields.

To add an API: its number in ``Api``; its messages and their ``declare`` in a module here; its
handler in a module of ``broker/handlers``; a row in ``docs/formats/protocol.md``.
"""

from spark_logbus.protocol.messages.api import *
from spark_logbus.protocol.messages.append import *
from spark_logbus.protocol.messages.connection import *
from spark_logbus.protocol.messages.elections import *
from spark_logbus.protocol.messages.error import *
from spark_logbus.protocol.messages.fetch import *
from spark_logbus.protocol.messages.metadata import *
from spark_logbus.protocol.messages.moves import *
from spark_logbus.protocol.messages.offsets import *
from spark_logbus.protocol.messages.replication import *
from spark_logbus.protocol.messages.tokens import *
from spark_logbus.protocol.messages.topics import *
from spark_logbus.protocol.messages.writes import *
