"""Identities: a principal, and within which bounds a connection acts for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spark_logbus.security.principals import ANONYMOUS, Principal
from spark_logbus.security.tokens import Scope


@dataclass(frozen=True, slots=True)
class Identity:
    """A principal, and the bounds within which a connection acts for it.

    ``scope``: that of the token that it has shown; None: it acts for all of the principal.
    ``mark``: of the user's password with which it was proved, see ``scram.mark``.
    """

    principal: Principal
    scope: Scope | None = None
    mark: bytes = b""


NOBODY: Final = Identity(ANONYMOUS)
