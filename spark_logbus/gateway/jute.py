"""The parts of ZooKeeper's messages: numbers, texts and bytes, as its library jute writes them."""

from __future__ import annotations

import struct
from typing import Final

from spark_logbus.errors import ProtocolError

_INT: Final = struct.Struct("!i")
_LONG: Final = struct.Struct("!q")


class Reader:
    """Reads a message from its beginning on. Every method raises ProtocolError for what is not
    there, or is something else. Not thread-safe."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        #: Where the next part begins.
        self.at = 0

    def int32(self) -> int:
        return int(_INT.unpack(self._take(4))[0])

    def int64(self) -> int:
        return int(_LONG.unpack(self._take(8))[0])

    def boolean(self) -> bool:
        value = self._take(1)[0]
        if value > 1:
            raise ProtocolError(f"A flag is 0 or 1, got {value}.")
        return value == 1

    def buffer(self) -> bytes | None:
        length = self.int32()
        if length == -1:
            return None
        if length < 0:
            raise ProtocolError(f"A length is -1 or more, got {length}.")
        return self._take(length)

    def text(self) -> str:
        """Reads a text; one that is missing is empty, as kazoo writes an empty one."""
        found = self.buffer()
        try:
            return "" if found is None else found.decode()
        except UnicodeDecodeError as error:
            raise ProtocolError("A text is not UTF-8.") from error

    def count(self, least_bytes: int) -> int:
        """Reads the number of parts that follow, of which each has that many bytes at least."""
        count = self.int32()
        if not 0 <= count <= (len(self._message) - self.at) // least_bytes:
            raise ProtocolError(f"{count} parts are announced, which do not follow.")
        return count

    def rest(self) -> bytes:
        return self._take(len(self._message) - self.at)

    def end(self) -> None:
        if self.at != len(self._message):
            raise ProtocolError(
                f"A message has {len(self._message) - self.at} bytes more than its kind has."
            )

    def _take(self, length: int) -> bytes:
        if self.at + length > len(self._message):
            raise ProtocolError(
                f"A message ends after {len(self._message)} bytes, in the middle of a part."
            )
        taken = self._message[self.at : self.at + length]
        self.at += length
        return taken


def int32(value: int) -> bytes:
    return _INT.pack(value)


def int64(value: int) -> bytes:
    return _LONG.pack(value)


def buffer(value: bytes) -> bytes:
    return _INT.pack(len(value)) + value


def text(value: str) -> bytes:
    return buffer(value.encode())


def frame(message: bytes) -> bytes:
    """Returns a message as it is sent: behind its length."""
    return _INT.pack(len(message)) + message
