"""Servers that take part in a run where they are at hand."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import TypeVar

from bench.kit.harness import console
from bench.servers import ServerUnavailableError

_Server = TypeVar("_Server")


def at_hand(
    stack: ExitStack, name: str, start: Callable[[], AbstractContextManager[_Server]]
) -> _Server | None:
    """Returns a server that runs until ``stack`` is closed; None, and a line that says why, where
    something lacks for it."""
    try:
        return stack.enter_context(start())
    except ServerUnavailableError as error:
        console.print(f"{name} is left out, as it is not at hand: {error}", markup=False)
        return None
