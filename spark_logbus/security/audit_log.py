"""The audit log: who was refused, who logged in in vain, who administered what."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from typing import Any, Final

from spark_logbus.clock import Clock
from spark_logbus.errors import LogbusError
from spark_logbus.security.identity import Identity

logger = logging.getLogger("logbus.audit")

# So many lines of one kind, about one principal, in each span of so many seconds; the rest is
# counted. Else who is refused could fill the disk with it.
_MOST: Final = 5
_SPAN_S: Final = 10.0
_MAX_KEYS: Final = 5_000


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
        self._tell(
            "login failed", user, peer, mechanism=mechanism[:40], reason=type(error).__name__
        )

    def done(self, identity: Identity, peer: str, api: str, on: str) -> None:
        """Notes an administrative act. These are never left out."""
        self._write("done", str(identity.principal), peer, api=api, on=on)

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
                self._write(kind, who, "", left_out=count - _MOST)
        if told <= _MOST:
            self._write(event, principal, peer, **more)

    def _write(self, event: str, principal: str, peer: str, **more: Any) -> None:
        logger.info(
            "%s", json.dumps({"event": event, "principal": principal, "peer": peer, **more})
        )
