"""SCRAM: both ends prove that they know a password, and neither sends it.

The exchange is that of RFC 5802 and RFC 7677, by the library ``scramp``. A broker keeps a salt and
two keys for each user, from which nobody gets the password but by trying all.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from typing import Annotated, Final

import msgspec
import scramp

from spark_logbus.errors import AuthenticationError, ConfigError, ProtocolError

#: The strongest last.
MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
#: What a guess costs whoever has stolen the keys; a client pays it once a connection.
ITERATIONS: Final = 16_384
MIN_PASSWORD_CHARS: Final = 8
_MAX_USER_CHARS: Final = 200
_MAX_MESSAGE_BYTES: Final = 2_000
_SALT_BYTES: Final = 16
_MARK_BYTES: Final = 12


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a password that a broker keeps, for one mechanism."""

    salt: bytes
    iterations: Annotated[int, msgspec.Meta(ge=4_096, le=10_000_000)]
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"Credential(iterations={self.iterations})"


def new_credentials(password: str) -> dict[str, Credential]:
    """Makes the credentials of a password, by mechanism. Raises ConfigError for one that is too
    short, or has characters that no password has."""
    if len(password) < MIN_PASSWORD_CHARS:
        raise ConfigError(
            f"A password has at least {MIN_PASSWORD_CHARS} characters, this one has "
            f"{len(password)}."
        )
    found = {}
    for mechanism in MECHANISMS:
        try:
            salt, stored, server, iterations = scramp.ScramMechanism(mechanism).make_auth_info(
                password, iteration_count=ITERATIONS, salt=secrets.token_bytes(_SALT_BYTES)
            )
        except scramp.ScramException as error:
            raise ConfigError("The password has characters that no password has.") from error
        found[mechanism] = Credential(
            salt=salt, iterations=iterations, stored_key=stored, server_key=server
        )
    return found


def fits(password: str, credential: Credential, mechanism: str) -> bool:
    """Tells if a credential was made of that password. Takes milliseconds, as for a guess."""
    try:
        _, stored_key, _, _ = scramp.ScramMechanism(mechanism).make_auth_info(
            password, iteration_count=credential.iterations, salt=credential.salt
        )
    except (scramp.ScramException, ValueError):
        return False  # it has characters that no password has
    return hmac.compare_digest(stored_key, credential.stored_key)


def mark(credentials: Mapping[str, Credential]) -> bytes:
    """Returns what is another one after each change of the password. It is made of the salts alone,
    so nobody can try passwords with it."""
    salts = b"".join(credentials[each].salt for each in sorted(credentials))
    return hashlib.sha256(salts).digest()[:_MARK_BYTES]


#: Finds the credential of a user for a mechanism; None if there is none.
FindCredential = Callable[[str, str], Credential | None]


class ServerExchange:
    """One login at a broker: two messages in, two out. Not thread-safe.

    For a user who does not exist the exchange goes on, with a salt that is always the same for that
    name, and fails at its end as for a wrong password: nobody learns who exists. ``secret`` makes
    that salt.
    """

    def __init__(self, mechanism: str, find: FindCredential, *, secret: bytes) -> None:
        self.user = ""
        self.mechanism = mechanism
        #: That of the user, as it was when the login began; None: there is none.
        self.credential: Credential | None = None
        self._find = find
        self._secret = secret
        self._is_first = True
        self._server = scramp.ScramMechanism(mechanism).make_server(self._auth_info)

    def answer(self, message: bytes) -> tuple[bytes, bool]:
        """Returns the answer to the next message, and if the client has proved who it is.

        Raises AuthenticationError for a wrong proof, ProtocolError for what no message is.
        """
        text = _text(message)
        try:
            if self._is_first:
                self._is_first = False
                self._server.set_client_first(text)
                return self._server.get_server_first().encode(), False
            self._server.set_client_final(text)
            return self._server.get_server_final().encode(), True
        except scramp.ScramException as error:
            raise AuthenticationError("The user or the password is wrong.") from error
        except (ValueError, IndexError, KeyError, TypeError) as error:
            raise ProtocolError("A message of the login is none of SCRAM's.") from error

    def _auth_info(self, user: str) -> tuple[bytes, bytes, bytes, int]:
        if not 0 < len(user) <= _MAX_USER_CHARS:
            raise AuthenticationError("The user or the password is wrong.")
        self.user = user
        found = self.credential = self._find(user, self.mechanism)
        if found is None:
            # Of each mechanism another one, as users have.
            named = f"{self.mechanism} {user}".encode()
            digest = hmac.new(self._secret, named, hashlib.sha256).digest()
            size = 64 if self.mechanism == "SCRAM-SHA-512" else 32
            unknown = secrets.token_bytes(size)
            return digest[:_SALT_BYTES], unknown, unknown, ITERATIONS
        return found.salt, found.stored_key, found.server_key, found.iterations


class ClientExchange:
    """One login at a client, which also has the broker prove that it knows the password."""

    def __init__(self, mechanism: str, user: str, password: str) -> None:
        try:
            self._client = scramp.ScramClient([mechanism], user, password)
        except scramp.ScramException as error:
            raise ConfigError(f"{user!r} cannot log in: {error}.") from None
        self._user = user

    def first(self) -> bytes:
        message: str = self._client.get_client_first()
        return message.encode()

    def final(self, server_first: bytes) -> bytes:
        try:
            self._client.set_server_first(_text(server_first))
            message: str = self._client.get_client_final()
        except (scramp.ScramException, ValueError) as error:
            raise ProtocolError("The broker's answer to a login is none of SCRAM's.") from error
        return message.encode()

    def check(self, server_final: bytes) -> None:
        """Raises AuthenticationError for a broker that does not know the password."""
        try:
            self._client.set_server_final(_text(server_final))
        except (scramp.ScramException, ValueError) as error:
            raise AuthenticationError(
                f"The broker did not prove that it knows the password of {self._user!r}: it is "
                "none of this cluster."
            ) from error


def _text(message: bytes) -> str:
    if len(message) > _MAX_MESSAGE_BYTES:
        raise ProtocolError(
            f"A message of a login has {len(message)} bytes, expected {_MAX_MESSAGE_BYTES} at most."
        )
    try:
        return message.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError("A message of the login is no text.") from error
