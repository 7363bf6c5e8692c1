"""Keys with which brokers sign tokens: made by the first broker, and anew each day by any."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

from spark_logbus.coordination import paths
from spark_logbus.coordination.payloads import decode, encode
from spark_logbus.coordination.security.payloads import TokenKeyPayload, TokenKeysPayload
from spark_logbus.retry import Deadline
from spark_logbus.security.tokens import KEY_BYTES, new_key
from spark_logbus.zookeeper.nodes import Node, Nodes
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import Create, SetData
from spark_logbus.zookeeper.watches import Change, WatchedRefresh

_DAY_US: Final = 24 * 3600 * 1_000_000
# A key begins to sign some minutes after it was made, and goes on until the next does. So it
# verifies for a day after that: as long as any token lasts.
_KEPT: Final = 3


class TokenKeys:
    """Makes, renews and watches the keys. Thread-safe."""

    def __init__(self, session: Session) -> None:
        self._nodes = Nodes(session)

    def renew(self, *, now_us: int) -> TokenKeysPayload:
        """Makes a new key if there is none, or the newest is a day old; returns all."""
        found: TokenKeysPayload | None = None

        def attempt(deadline: Deadline) -> None:
            nonlocal found
            node = self._nodes.get(paths.TOKEN_KEYS, deadline=deadline)
            known = None if node is None else _decoded(node)
            found = known
            if known is not None:
                newest = max(each.made_us for each in known.keys.values())
                if newest > now_us - _DAY_US:
                    return
            found = _renewed(known, now_us)
            operation = (
                Create(paths.TOKEN_KEYS, encode(found), private=True)
                if node is None
                else SetData(paths.TOKEN_KEYS, encode(found), version=node.version)
            )
            self._nodes.transact("renew the keys of tokens", [operation], deadline=deadline)

        self._nodes.ensure(paths.SECURITY, private=True)
        self._nodes.repeat("renew the keys of tokens", attempt)
        assert found is not None
        return found

    def watch(self, deliver: Callable[[TokenKeysPayload], None]) -> None:
        """Calls ``deliver`` with the keys: now, on this thread, and at each change."""

        def refresh(_: Change) -> None:
            node = self._nodes.get(paths.TOKEN_KEYS, watch=refreshed.watch)
            if node is None:
                refreshed.look_again([paths.TOKEN_KEYS])
            else:
                deliver(_decoded(node))

        refreshed = WatchedRefresh(self._nodes, "keys of tokens", refresh)
        refreshed.start()


def _renewed(known: TokenKeysPayload | None, now_us: int) -> TokenKeysPayload:
    keys = {} if known is None else dict(known.keys)
    keys[max(keys, default=0) + 1] = TokenKeyPayload(key=new_key(), made_us=now_us)
    kept = sorted(keys)[-_KEPT:]
    secret = secrets.token_bytes(KEY_BYTES) if known is None else known.secret
    return TokenKeysPayload(keys={each: keys[each] for each in kept}, secret=secret)


def _decoded(node: Node) -> TokenKeysPayload:
    return decode(TokenKeysPayload, node.data, path=paths.TOKEN_KEYS)
