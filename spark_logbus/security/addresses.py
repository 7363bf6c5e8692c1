"""Addresses that hold a password, as ``https://user:password@host``: they are shown by plans, logs
and lists of processes, so none is taken."""

from __future__ import annotations

import re
from typing import Final

# Not a port, after which a path may have an @.
_CREDENTIALS: Final = re.compile(r"://[^/@\s]*:(?!\d{1,5}(?:/|$))[^@\s]+@")


def holds_password(text: str) -> bool:
    """Tells if a text has an address with a user and a password in it."""
    return _CREDENTIALS.search(text) is not None
