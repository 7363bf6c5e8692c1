"""The audit log: who was refused, who logged in in vain, who administers what."""

from __future__ import annotations

import datetime as dt
import json
import logging
import threading
from collections import Counter
from collections.abc import Collection
from typing import Any, Final

from spark_logbus.clock import Clock
from spark_logbus.errors import LogbusError
from spark_logbus.security.identity import Identity

#: It is written to whatever the level of others.
AUDIT_LOGGER: Final = "logbus.audit"
logger = logging.getLogger(AUDIT_LOGGER)

# So many lines of one kind, about one principal, in each span of so many seconds; the rest is
# counted. Else who is refused could fill the disk with it.
_MOST: Final = 5
_SPAN_S: Final = 10.0
_MAX_KEYS: Final = 5_000
_MAX_CHARS: Final = 500
_MAX_NAMES: Final = 50


class AuditLog:
    """Writes one JSON object a line to the logger ``logbus.audit``. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._span = -1
        self._told: Counter[tuple[str, str]] = Counter()

    def denied(self, identity: Identity, peer: str, api: str, what: str) -> None:
        self._tell("denied", str(identity.principal), peer, api=api, on=what)

    def login_failed(self, peer: str, user: str, mechanism: str, error: LogbusError) -> None:
        self._tell("login failed", user, peer, mechanism=mechanism, reason=error.message)

    def token_given(self, identity: Identity, peer: str) -> None:
        self._tell("token", str(identity.principal), peer)

    def asked(self, identity: Identity, peer: str, api: str, on: str) -> None:
        """Notes an administrative act that is allowed and begins now. These are never left out."""
        self._write("asked", principal=str(identity.principal), peer=peer, api=api, on=on)

    def changed(self, what: str, **changes: Collection[str]) -> None:
        """Notes what has changed among users or rules, by whomever: a kind of change, and the names
        of all that it was made to."""
        more: dict[str, Any] = {}
        for kind, names in changes.items():
            if names:
                more[kind] = [each[:_MAX_CHARS] for each in sorted(names)[:_MAX_NAMES]]
            if len(names) > _MAX_NAMES:
                more[f"{kind}_more"] = len(names) - _MAX_NAMES
        if more:
            self._write(f"{what} changed", **more)

    def _tell(self, event: str, principal: str, peer: str, **more: Any) -> None:
        span = int(self._clock.monotonic() / _SPAN_S)
        with self._lock:
            left, told = Counter[tuple[str, str]](), 0
            if span != self._span or len(self._told) > _MAX_KEYS:
                left, self._told, self._span = self._told, Counter(), span
            self._told[event, principal] += 1
            told = self._told[event, principal]
        for (kind, who), count in left.items():
            if count > _MOST:
                self._write(kind, principal=who, left_out=count - _MOST)
        if told <= _MOST:
            self._write(event, principal=principal, peer=peer, **more)

    def _write(self, event: str, **more: Any) -> None:
        # Of names that a stranger chose: JSON escapes what would end a line, and no name fills the
        # disk.
        cut = {
            key: value[:_MAX_CHARS] if isinstance(value, str) else value
            for key, value in more.items()
        }
        moment = dt.datetime.fromtimestamp(self._clock.now_us() / 1e6, dt.UTC)
        ts = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        logger.info("%s", json.dumps({"ts": ts, "event": event, **cut}))
