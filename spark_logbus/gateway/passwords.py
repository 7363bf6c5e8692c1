"""Passwords of sessions that nobody can guess.

A session goes on at any server for whoever shows its number and its password. ZooKeeper's password
is computed from the number alone, and the number stands with every ephemeral node: whoever may look
at a broker's node could take over that broker's session, and end it. So a client of a gateway gets
another password: ZooKeeper's, and a seal that only brokers of the cluster can make.
"""

from __future__ import annotations

import hmac
from typing import Final

from spark_logbus.gateway import jute

_SEAL_BYTES: Final = 32
_PURPOSE: Final = b"logbus gateway session\0"


def sealed(session_id: int, password: bytes, secret: bytes) -> bytes:
    """Returns the password of a session for its client."""
    return password + _seal(session_id, password, secret)


def opened(session_id: int, shown: bytes, secret: bytes) -> bytes | None:
    """Returns ZooKeeper's password of a session; None if no gateway has given what is shown."""
    password, seal = shown[:-_SEAL_BYTES], shown[-_SEAL_BYTES:]
    expected = _seal(session_id, password, secret)
    return password if hmac.compare_digest(seal, expected) else None


def _seal(session_id: int, password: bytes, secret: bytes) -> bytes:
    return hmac.digest(secret, _PURPOSE + jute.int64(session_id) + password, "sha256")
