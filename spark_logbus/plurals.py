"""Numbers with what they count, for messages."""

from __future__ import annotations

from collections.abc import Sequence


def plural(count: int, one: str, many: str | None = None) -> str:
    """Returns the number and its noun, ``many`` (``one`` with an s) of which there are unless there
    is 1; both may go on up to the verb."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def first_of(names: Sequence[str]) -> str:
    """Returns the first name, and says where there are more."""
    return names[0] if len(names) == 1 else f"{names[0]} and others"
