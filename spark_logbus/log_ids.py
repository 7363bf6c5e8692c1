"""Ids of logs: 32 hexadecimal digits, which tell a log from every other of its partition.

A log that may have lost records after others were told that it has them takes another id, of which
the first half stays: it is the log's origin. So it can be told from what it was, and still be known
for the same log, however often that has happened. A log that does not know its origin any more,
because the file with its id was damaged, has zeros there.
"""

from __future__ import annotations

import secrets
from typing import Final

_HALF_BYTES: Final = 8
_HALF: Final = 2 * _HALF_BYTES
_UNKNOWN: Final = "0" * _HALF


def new_log_id() -> str:
    """Returns an id for a log that is made, or that is to be taken for another from now on."""
    return secrets.token_hex(2 * _HALF_BYTES)


def renewed_log_id(log_id: str | None) -> str:
    """Returns another id for a log that had ``log_id``; None: it is not known what it had."""
    return (_UNKNOWN if log_id is None else log_id[:_HALF]) + secrets.token_hex(_HALF_BYTES)


def is_same_log(log_id: str, other: str) -> bool:
    """Returns True if both are ids of one log, at one time or another."""
    return log_id == other or (log_id[:_HALF] == other[:_HALF] and log_id[:_HALF] != _UNKNOWN)


def may_be_same_log(log_id: str, known: str) -> bool:
    """Returns False if a log that has ``log_id`` now never had the id ``known``."""
    return is_same_log(log_id, known) or log_id[:_HALF] == _UNKNOWN
