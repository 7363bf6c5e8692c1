"""Contents of the nodes below ``/security``."""

from __future__ import annotations

from typing import Annotated

import msgspec

from spark_logbus.security.scram import Credential


class UserPayload(msgspec.Struct, frozen=True, kw_only=True):
    """One user: credentials by mechanism."""

    credentials: dict[str, Credential]
    changed_us: Annotated[int, msgspec.Meta(ge=0)] = 0


class RulePayload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    principal: str
    operation: str
    allow: bool = True


class RulesPayload(msgspec.Struct, frozen=True, kw_only=True):
    """All rules about one kind of resource."""

    rules: list[RulePayload]


class TokenKeyPayload(msgspec.Struct, frozen=True, kw_only=True):
    key: bytes
    made_us: Annotated[int, msgspec.Meta(ge=0)]

    def __repr__(self) -> str:
        return f"TokenKeyPayload(made_us={self.made_us})"


class TokenKeysPayload(msgspec.Struct, frozen=True, kw_only=True):
    """Keys by their ids; the newest signs, all verify.

    ``secret`` is never renewed: marks of what principals have staged, passwords of sessions at
    gateways, and the salts of users that there are not are made with it.
    """

    keys: dict[int, TokenKeyPayload]
    secret: bytes

    def __repr__(self) -> str:
        return f"TokenKeysPayload({self.keys})"
