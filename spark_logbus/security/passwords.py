"""Passwords that clients send as they are, within an encrypted connection."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections import OrderedDict
from typing import Final

from spark_logbus.clock import Clock
from spark_logbus.errors import AuthenticationError
from spark_logbus.security.attempts import LoginLimits
from spark_logbus.security.scram import ITERATIONS, Credential, FindCredential, fits

_MECHANISM: Final = "SCRAM-SHA-256"  # any would do; this one takes half the time
_REMEMBERED_S: Final = 60.0
_MAX_REMEMBERED: Final = 1_000
# Of a user that there is not, so that to look for one takes as long as to try a password.
_NOBODYS: Final = Credential(
    salt=secrets.token_bytes(16), iterations=ITERATIONS, stored_key=b"", server_key=b""
)


class PasswordCheck:
    """Checks passwords by the credentials of users, within the limits of failed logins.
    Thread-safe.

    To check one takes milliseconds, so the last that were right are remembered for a minute: by
    digests with a key of this process, and no longer than the credential is the same. Others are
    checked one at a time, so that guesses take no more than one core, and that many at once are
    within the limits as well.
    """

    def __init__(self, find: FindCredential, *, limits: LoginLimits, clock: Clock) -> None:
        self._find = find
        self._limits = limits
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._remembered: OrderedDict[bytes, tuple[bytes, float]] = OrderedDict()
        self._lock = threading.Lock()

    def require(self, user: str, password: str, *, address: str) -> None:
        """Raises AuthenticationError for a user or password that is wrong, TooManyFailuresError
        for whoever has to wait before the next try."""
        digest = hmac.digest(self._key, repr((user, password)).encode(), hashlib.sha256)
        self._limits.require(address, user)
        credential = self._find(user, _MECHANISM)
        if self._is_remembered(digest, credential):
            return
        with self._lock:
            self._limits.require(address, user)
            is_right = fits(password, credential or _NOBODYS, _MECHANISM)
            if credential is None or not is_right:
                self._limits.failed(address, user)
                raise AuthenticationError("The user or the password is wrong.")
            self._limits.succeeded(address, user)
            self._remember(digest, credential)

    def _is_remembered(self, digest: bytes, credential: Credential | None) -> bool:
        stored_key, until = self._remembered.get(digest, (b"", 0.0))
        return (
            credential is not None
            and stored_key == credential.stored_key
            and self._clock.monotonic() < until
        )

    def _remember(self, digest: bytes, credential: Credential) -> None:
        until = self._clock.monotonic() + _REMEMBERED_S
        self._remembered[digest] = credential.stored_key, until
        self._remembered.move_to_end(digest)
        if len(self._remembered) > _MAX_REMEMBERED:
            self._remembered.popitem(last=False)
