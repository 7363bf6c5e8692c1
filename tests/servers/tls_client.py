"""A client's end of TLS that decides what its records are, and when which of their bytes leave."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from spark_logbus.protocol import Frame, FrameLimits, FrameReader

_TIMEOUT_S = 60.0
_HANDSHAKE, _APPLICATION_DATA = 22, 23
_KEY_UPDATE = bytes([24, 0, 0, 1, 1])  # and the other end is to renew its key as well


class TlsClient:
    """Shakes hands with a server; records are then made by ``seal``, and sent by ``sock``.

    ``keys``: a file for OpenSSL to write secrets to, with which ``forge`` makes records of any
    kind, by TLS 1.3; after the first of those ``seal`` is no use any more.
    """

    def __init__(self, host: str, port: int, ca: str, *, keys: Path | None = None) -> None:
        context = ssl.create_default_context(cadata=ca)
        if keys is not None:
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.keylog_filename = str(keys)
        self.sock = socket.create_connection((host, port), timeout=_TIMEOUT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=host)
        self._reader = FrameReader(FrameLimits(1 << 30))
        self._keys = keys
        self._secret = b""
        self._sequence = 0
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self.sock.sendall(self._out.read())
                self._in.write(self.sock.recv(1 << 16))
            else:
                self.sock.sendall(self._out.read())
                break

    def __enter__(self) -> TlsClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def seal(self, data: bytes, sizes: Iterable[int] = (1 << 14,)) -> bytes:
        """Encrypts data as records of those sizes, the last of which goes on to the end."""
        size, rest, at = 1 << 14, iter(sizes), 0
        while at < len(data):
            size = next(rest, size)
            self._tls.write(data[at : at + size])
            self._sequence += 1
            at += size
        return self._out.read()

    def receive(self) -> Frame:
        """Returns the next frame. Raises ConnectionError when there is none."""
        while True:
            buffer = self._reader.buffer()
            try:
                data = self._tls.read(len(buffer))
            except ssl.SSLWantReadError:
                if not (data := self.sock.recv(1 << 16)):
                    raise ConnectionResetError from None
                self._in.write(data)
                continue
            except ssl.SSLError as error:
                raise ConnectionResetError from error
            if not data:
                raise ConnectionResetError
            buffer[: len(data)] = data
            frame = self._reader.advance(len(data))
            if frame is not None:
                return frame

    def forge(self, content: bytes, kind: int) -> bytes:
        """Encrypts a record of that kind, which may be empty or none that OpenSSL would send."""
        if not self._secret:
            assert self._keys is not None
            lines = [line.split() for line in self._keys.read_text().splitlines()]
            [secret] = [line[2] for line in lines if line[0] == "CLIENT_TRAFFIC_SECRET_0"]
            self._secret = bytes.fromhex(secret)
        key = AESGCM(self._expand("key", 32 if self._hash.digest_size == 48 else 16))
        iv = bytearray(self._expand("iv", 12))
        for at, byte in enumerate(self._sequence.to_bytes(12, "big")):
            iv[at] ^= byte
        self._sequence += 1
        inner = content + bytes([kind])
        head = struct.pack(">BHH", _APPLICATION_DATA, 0x0303, len(inner) + 16)
        return head + key.encrypt(bytes(iv), inner, head)

    def key_update(self) -> bytes:
        """Makes a record that has both ends renew their keys."""
        record = self.forge(_KEY_UPDATE, _HANDSHAKE)
        self._secret = self._expand("traffic upd", self._hash.digest_size)
        self._sequence = 0
        return record

    @property
    def _hash(self) -> hashes.SHA256 | hashes.SHA384:
        name = (self._tls.cipher() or ("",))[0]
        return hashes.SHA384() if name.endswith("SHA384") else hashes.SHA256()

    def _expand(self, label: str, size: int) -> bytes:
        name = b"tls13 " + label.encode()
        info = struct.pack(">HB", size, len(name)) + name + b"\0"
        return HKDFExpand(self._hash, size, info).derive(self._secret)
