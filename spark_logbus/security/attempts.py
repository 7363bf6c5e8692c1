"""A limit on failed logins, by who tries."""

from __future__ import annotations

import ipaddress
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from spark_logbus.clock import Clock
from spark_logbus.errors import AuthenticationError

_MAX_KNOWN: Final = 10_000
_MAX_KEY_CHARS: Final = 300
_HOST_BITS: Final = (1 << 64) - 1
# Failures of one user at one address, and of all users at one, at once and a second.
_USER_BURST: Final = 5
_USER_PER_S: Final = 0.5
_ADDRESS_BURST: Final = 50
_ADDRESS_PER_S: Final = 5.0


class TooManyFailuresError(AuthenticationError):
    """A login that was not looked at: too many from there have failed."""


@dataclass(slots=True)
class _Bucket:
    left: float
    at: float


class FailedAttempts:
    """Counts failures of each key, an address or a user at an address, against an allowance that
    fills up again. Thread-safe; keeps the last 10,000 keys."""

    def __init__(self, clock: Clock, *, burst: int, per_s: float) -> None:
        self._clock = clock
        self._burst = burst
        self._per_s = per_s
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def wait_s(self, key: str) -> float:
        """Returns the seconds until it may try again; 0 if it may."""
        with self._lock:
            bucket = self._filled(key)
            return 0.0 if bucket is None or bucket.left >= 1 else (1 - bucket.left) / self._per_s

    def failed(self, key: str) -> None:
        with self._lock:
            bucket = self._filled(key)
            if bucket is None:
                bucket = self._buckets[key] = _Bucket(self._burst, self._clock.monotonic())
                if len(self._buckets) > _MAX_KNOWN:
                    self._buckets.popitem(last=False)
            bucket.left = max(0.0, bucket.left - 1)
            self._buckets.move_to_end(key)

    def _filled(self, key: str) -> _Bucket | None:
        bucket = self._buckets.get(key)
        if bucket is not None:
            now = self._clock.monotonic()
            bucket.left = min(self._burst, bucket.left + (now - bucket.at) * self._per_s)
            bucket.at = now
            if bucket.left >= self._burst:
                del self._buckets[key]
                return None
        return bucket


class LoginLimits:
    """Limits on the failed logins at one server: of each user at an address, and of all users there
    together, so that nobody tries one password with many names. Thread-safe.

    The latter does not bind a user who has logged in from there before: whoever guesses behind an
    address would else keep all others out who come from it. Nobody at another address is kept out
    by anything.
    """

    def __init__(self, clock: Clock) -> None:
        self._by_user = FailedAttempts(clock, burst=_USER_BURST, per_s=_USER_PER_S)
        self._by_address = FailedAttempts(clock, burst=_ADDRESS_BURST, per_s=_ADDRESS_PER_S)
        self._lock = threading.Lock()
        self._came_before: OrderedDict[str, None] = OrderedDict()

    @property
    def remembered(self) -> int:
        """The number of users and addresses that are remembered, for whatever reason."""
        return len(self._by_user) + len(self._by_address) + len(self._came_before)

    def require(self, address: str, user: str) -> None:
        """Raises TooManyFailuresError if the user has to wait."""
        key, address = _key(user, address), _network(address)
        with self._lock:
            came_before = key in self._came_before
        if self._by_user.wait_s(key) > 0 or (
            not came_before and self._by_address.wait_s(address) > 0
        ):
            raise TooManyFailuresError(
                "Too many logins from there have failed; wait for some seconds, and check the user "
                "and the password."
            )

    def failed(self, address: str, user: str = "") -> None:
        """Notes a failure; ``user`` is empty where nobody was named."""
        self._by_address.failed(_network(address))
        if user:
            self._by_user.failed(_key(user, address))

    def succeeded(self, address: str, user: str) -> None:
        key = _key(user, address)
        with self._lock:
            self._came_before[key] = None
            self._came_before.move_to_end(key)
            if len(self._came_before) > _MAX_KNOWN:
                self._came_before.popitem(last=False)


def _key(user: str, address: str) -> str:
    return f"{_network(address)} {user}"[:_MAX_KEY_CHARS]


def _network(address: str) -> str:
    """Returns by what an address counts: whoever has one of IPv6 has 2^64, which begin alike."""
    try:
        whole = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if whole.ipv4_mapped is not None:
        return str(whole.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(whole) & ~_HOST_BITS, 64)))
