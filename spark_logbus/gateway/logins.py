"""Logins at a gateway: by a user's password, a token, or a client's certificate."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from spark_logbus.broker.security.security import Security
from spark_logbus.coordination.paths import MAX_USER_LENGTH
from spark_logbus.errors import AuthenticationError, LogbusError
from spark_logbus.security import tokens
from spark_logbus.security.attempts import FailedAttempts, TooManyFailuresError
from spark_logbus.security.certificates import common_name
from spark_logbus.security.identity import Identity
from spark_logbus.security.passwords import PasswordCheck
from spark_logbus.security.principals import Principal
from spark_logbus.security.scram import mark

PLAIN: Final = "plain"
TOKEN: Final = "token"
# Of connections of one address that end without a login, at once and a second.
_BURST: Final = 100
_PER_S: Final = 10.0
# In a row, of one session: a network fails now and then.
_MOST_UNPROVED: Final = 5
_MAX_KNOWN: Final = 10_000


class Logins:
    """Finds out who sends a proof. Thread-safe; a password takes milliseconds to check, so that is
    done on a thread of its own, one at a time."""

    def __init__(self, security: Security) -> None:
        self._security = security
        self._limits = security.authentication.limits
        self._passwords = PasswordCheck(
            security.state.credential, limits=self._limits, clock=security.clock
        )
        self._unproved = FailedAttempts(security.clock, burst=_BURST, per_s=_PER_S)
        self._kept_going: OrderedDict[int, int] = OrderedDict()
        self._checks = ThreadPoolExecutor(1, thread_name_prefix="gateway-login")

    def require_few(self, peer: str) -> None:
        """Raises AuthenticationError where many connections have ended without a login: to begin a
        session has ZooKeeper write, whoever asks for it."""
        if self._unproved.wait_s(_address(peer)) > 0:
            raise AuthenticationError(
                f"Too many connections of {_address(peer)} have ended without a login."
            )

    def ended_unproved(self, peer: str, session_id: int) -> bool:
        """Notes a connection that had a session, and no login. Returns True if the session has to
        end with it: whoever keeps one going in that way may be nobody any more."""
        self._unproved.failed(_address(peer))
        times = self._kept_going.pop(session_id, 0) + 1
        self._kept_going[session_id] = times
        if len(self._kept_going) > _MAX_KNOWN:
            self._kept_going.popitem(last=False)
        return times >= _MOST_UNPROVED

    def proved(self, session_id: int) -> None:
        """Notes that a session's client has logged in."""
        self._kept_going.pop(session_id, None)

    def stop(self) -> None:
        self._checks.shutdown(wait=False, cancel_futures=True)

    def by_certificate(self, der: bytes) -> Identity:
        """Returns whom a certificate lets in that was checked. Raises AuthenticationError."""
        return Identity(Principal("certificate", common_name(der)))

    async def prove(self, scheme: str, proof: bytes, peer: str) -> Identity:
        """Returns whom a proof lets in. Raises AuthenticationError."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._checks, self._proved, scheme, proof, peer)

    def failed(self, peer: str, error: LogbusError, *, user: str = "", scheme: str = "") -> None:
        """Tells of a login that has failed, or was begun and not ended."""
        self._security.audit.login_failed(peer, user, scheme.upper(), error)

    def _proved(self, scheme: str, proof: bytes, peer: str) -> Identity:
        user = ""
        try:
            if scheme == TOKEN:
                return self._security.authentication.by_token(_token(proof))
            user, password = _user(scheme, proof)
            # Looked up first: a password that is changed meanwhile is another one than was proved.
            found = self._security.state.users.get(user)
            known = b"" if found is None else mark(found.credentials)
            self._passwords.require(user, password, address=_address(peer))
            return Identity(Principal("user", user), mark=known)
        except TooManyFailuresError:  # not noted: a stranger may name any number of users
            raise
        except AuthenticationError as error:
            self.failed(peer, error, user=user, scheme=scheme)
            raise


def _address(peer: str) -> str:
    return peer.rpartition(":")[0]


def _token(proof: bytes) -> bytes:
    if len(proof) > 2 * tokens.MAX_TOKEN_BYTES:
        raise _malformed()
    try:
        return base64.b64decode(proof, validate=True)
    except binascii.Error:
        raise _malformed() from None


def _user(scheme: str, proof: bytes) -> tuple[str, str]:
    try:
        user, colon, password = proof.decode().partition(":")
    except UnicodeDecodeError:
        raise _malformed() from None
    if scheme != PLAIN or not colon or not 0 < len(user) <= MAX_USER_LENGTH:
        raise _malformed()
    return user, password


def _malformed() -> AuthenticationError:
    return AuthenticationError(
        "A login here is by the scheme plain, of a user's name, a colon and the password, or by "
        "the scheme token, of a token in base64."
    )
