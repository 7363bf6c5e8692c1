"""Settings of TLS for both ends of a connection, made anew when their files have changed.

Certificates are renewed every few weeks while brokers and long queries run. A context is made of
the files as they are when a connection begins; connections that stand keep theirs. Files that
cannot be read, as in the middle of a renewal, leave the last good context in use.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from spark_logbus.clock import Clock, SystemClock
from spark_logbus.errors import ConfigError

logger = logging.getLogger(__name__)

#: Whether a client is asked for a certificate of its own, which names its principal.
CLIENT_CERTIFICATES: Final = ("none", "optional", "required")
_LOOK_EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """The files with which a server proves who it is; PEM, paths."""

    #: Its certificate, followed by those that lead to an authority that clients trust.
    certificate: Path
    #: The certificate's private key, without a password; nobody else may read it.
    key: Path
    #: Authorities whose certificates clients may show.
    client_ca: Path | None = None
    #: One of ``CLIENT_CERTIFICATES``.
    client_certificates: str = "none"

    def __post_init__(self) -> None:
        if self.client_certificates not in CLIENT_CERTIFICATES:
            raise ConfigError(
                f"client_certificates is {self.client_certificates!r}; use "
                f"{', '.join(CLIENT_CERTIFICATES[:-1])} or {CLIENT_CERTIFICATES[-1]}."
            )
        if self.client_certificates != "none" and self.client_ca is None:
            raise ConfigError(
                f"client_certificates is {self.client_certificates!r}, but client_ca names no file "
                "with the authorities that sign them."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """Certificates that a client believes, and the one that it shows; PEM."""

    #: The authorities that sign brokers' certificates, as text, so that tasks need no file. None:
    #: those of the machine.
    ca: str | None = None
    #: The client's own certificate and its private key, where brokers ask for one.
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("A client's certificate and its key are given together, or neither.")

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(each for each in (self.certificate, self.key) if each is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFiles:
    """Files of what a client believes and shows, read anew when they have changed."""

    #: The authorities that sign servers' certificates. None: those of the machine.
    ca: Path | None = None
    #: The client's own certificate and its private key, where servers ask for one.
    certificate: Path | None = None
    key: Path | None = None

    def read(self) -> ClientTls:
        """Returns what the files say now. Raises ConfigError."""
        ca = None if self.ca is None else _text(self.ca)
        return ClientTls(ca=ca, certificate=self.certificate, key=self.key)


def server_context(tls: ServerTls) -> ssl.SSLContext:
    """Makes the context of a server. Raises ConfigError for files that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context)
    _load_pair(context, tls.certificate, tls.key)
    if tls.client_ca is not None and tls.client_certificates != "none":
        try:
            context.load_verify_locations(cafile=tls.client_ca)
        except (OSError, ValueError) as error:
            raise _unusable("the authorities of clients", tls.client_ca, error) from error
        required = tls.client_certificates == "required"
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


def client_context(tls: ClientTls) -> ssl.SSLContext:
    """Makes the context of a client, which checks the broker's name. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context)
    if tls.ca is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        try:
            context.load_verify_locations(cadata=tls.ca)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"The text of the authorities to trust has no certificate: {error}."
            ) from error
    if tls.certificate is not None and tls.key is not None:
        _load_pair(context, tls.certificate, tls.key)
    return context


def _harden(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A peer that asks for new keys again and again costs the other end a handshake each time.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")


def _load_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    try:
        context.load_cert_chain(certificate, key, password=_refuse_password)
    except (OSError, ValueError) as error:
        raise _unusable(f"the certificate with the key {key}", certificate, error) from error


def _refuse_password() -> bytes:
    """Answers for OpenSSL, which would ask at the terminal."""
    raise ValueError("the key has a password; take that off, and let nobody else read the file")


def _unusable(what: str, path: Path, error: Exception) -> ConfigError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ConfigError(f"Cannot use {what} in {path}: {reason}.")


@dataclass(slots=True)
class CurrentContext:
    """A context that follows its files. Thread-safe.

    Looks at them once a second at most, when a connection begins. ``make`` raises ConfigError.
    """

    make: Callable[[], ssl.SSLContext]
    files: Iterable[Path]
    clock: Clock = field(default_factory=SystemClock)
    #: The file of the certificates that are shown; None: it is not told when they expire.
    certificate: Path | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _context: ssl.SSLContext | None = None
    _seen: tuple[object, ...] = ()
    _look_at: float = 0.0
    _expires_s: float | None = None

    def get(self) -> ssl.SSLContext:
        """Returns the context for a new connection. Raises ConfigError if there never was one."""
        with self._lock:
            now = self.clock.monotonic()
            if self._context is not None and now < self._look_at:
                return self._context
            self._look_at = now + _LOOK_EVERY_S
            seen = tuple(_stamp(each) for each in self.files)
            if self._context is None or seen != self._seen:
                self._renew(seen)
            assert self._context is not None
            return self._context

    def expires_s(self) -> float | None:
        """Returns when the first of the certificates in use expires, in seconds since 1970; None
        where that is not known."""
        self.get()
        return self._expires_s

    def _renew(self, seen: tuple[object, ...]) -> None:
        is_first = self._context is None
        try:
            self._context = self.make()
        except ConfigError as error:
            if is_first:
                raise
            logger.error("%s The certificates from before are used.", error.message)
        else:
            self._expires_s = None if self.certificate is None else _expiry_s(self.certificate)
            if self._expires_s is not None and self._expires_s * 1e6 <= self.clock.now_us():
                logger.error(
                    "The certificate in %s has expired, and clients refuse it. Put a new one "
                    "there, which is used without a restart.",
                    self.certificate,
                )
            if not is_first:
                logger.info("Certificates were read anew, for connections from now on.")
        self._seen = seen


def of_server(tls: ServerTls, clock: Clock | None = None) -> CurrentContext:
    """Returns the contexts of a server, from its files as they are."""
    return CurrentContext(
        lambda: server_context(tls),
        _files(tls),
        clock or SystemClock(),
        certificate=tls.certificate,
    )


def of_client(tls: ClientTls, clock: Clock | None = None) -> CurrentContext:
    """Returns the contexts of a client, from its files as they are."""
    return CurrentContext(lambda: client_context(tls), tls.files, clock or SystemClock())


def of_client_files(files: ClientFiles, clock: Clock | None = None) -> CurrentContext:
    """Returns the contexts of a client, from all of its files as they are."""
    given = (files.ca, files.certificate, files.key)
    return CurrentContext(
        lambda: client_context(files.read()),
        [each for each in given if each is not None],
        clock or SystemClock(),
    )


def of_peer(tls: ServerTls, clock: Clock) -> CurrentContext:
    """Returns the contexts of a server as a client of others of its cluster: it shows its own
    certificate, and believes those of ``client_ca``."""

    def make() -> ssl.SSLContext:
        ca = None if tls.client_ca is None else _text(tls.client_ca)
        return client_context(ClientTls(ca=ca, certificate=tls.certificate, key=tls.key))

    return CurrentContext(make, _files(tls), clock)


def _files(tls: ServerTls) -> list[Path]:
    return [each for each in (tls.certificate, tls.key, tls.client_ca) if each is not None]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read the authorities in {path}: {error}.") from error


def _expiry_s(path: Path) -> float | None:
    from spark_logbus.security.certificates import first_expiry_s  # here: no client waits for it

    try:
        return first_expiry_s(path.read_bytes())
    except (OSError, ValueError):
        return None


def _stamp(path: Path) -> object:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
