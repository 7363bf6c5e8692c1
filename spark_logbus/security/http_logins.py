"""Logins by HTTP: by a user's name and password (Basic), or by a client's certificate."""

from __future__ import annotations

import base64
import binascii
from typing import Final

from spark_logbus.errors import AuthenticationError
from spark_logbus.http import HttpError, Request
from spark_logbus.security.attempts import TooManyFailuresError
from spark_logbus.security.audit_log import AuditLog
from spark_logbus.security.certificates import common_name
from spark_logbus.security.passwords import PasswordCheck
from spark_logbus.security.principals import Principal

_CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="logbus", charset="UTF-8"'}
_WAIT: Final = {"Retry-After": "5"}
_NO_LOGIN: Final = (
    "Log in with the name and password of a user of this cluster (HTTP Basic), or show a "
    "certificate."
)


class HttpLogins:
    """Finds out who sends a request. Thread-safe."""

    def __init__(self, passwords: PasswordCheck, audit: AuditLog) -> None:
        self._passwords = passwords
        self._audit = audit

    def principal(self, request: Request) -> Principal:
        """Returns whom the request is from. Raises HttpError: 401 for nobody who is known, 429
        after too many failures."""
        header = request.headers.get("authorization")
        if header is not None:
            return self._user(request, header)
        if request.certificate is None:
            raise HttpError(401, _NO_LOGIN, headers=_CHALLENGE)
        try:
            return Principal("certificate", common_name(request.certificate))
        except AuthenticationError as error:
            self._audit.login_failed(request.address, "", "certificate", error)
            raise HttpError(401, error.message, headers=_CHALLENGE) from error

    def _user(self, request: Request, header: str) -> Principal:
        given = _basic(header)
        if given is None:
            raise HttpError(401, f"That is no login by HTTP Basic. {_NO_LOGIN}", headers=_CHALLENGE)
        user, password = given
        try:
            self._passwords.require(user, password, address=request.address)
        except (
            TooManyFailuresError
        ) as error:  # not told: a stranger chooses how many users there are
            raise HttpError(429, error.message, headers=_WAIT) from None
        except AuthenticationError as error:
            self._audit.login_failed(request.address, user, "BASIC", error)
            raise HttpError(401, error.message, headers=_CHALLENGE) from None
        return Principal("user", user)


def _basic(header: str) -> tuple[str, str] | None:
    """Returns the user and the password of an Authorization header; None if it has none."""
    scheme, _, encoded = header.strip().partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    user, colon, password = text.partition(":")
    return (user, password) if user and colon else None
