"""Lists of names in messages, which may be of thousands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_SHOWN: Final = 10


def shortened(names: Sequence[object], *, separator: str = ", ") -> str:
    """The first ten, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return separator.join(map(str, names[:_SHOWN])) + more
