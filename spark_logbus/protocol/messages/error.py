"""Errors as they cross the wire."""

from __future__ import annotations

from typing import Final

from spark_logbus.errors import LogbusError, from_code
from spark_logbus.protocol.messages.api import Message

__all__ = ["ErrorInfo", "error_info"]

MAX_ERROR_MESSAGE_CHARS: Final = 2000  # some full sentences with a name and a value or two


class ErrorInfo(Message):
    code: int
    message: str

    def to_exception(self) -> LogbusError:
        return from_code(self.code, self.message)


def error_info(error: LogbusError) -> ErrorInfo:
    # A message may quote what a user sent or a file name that is not UTF-8: it must neither fail
    # to encode nor outgrow the other end's header limit.
    message = error.message.encode("utf-8", "backslashreplace").decode()
    if len(message) > MAX_ERROR_MESSAGE_CHARS:
        message = message[:MAX_ERROR_MESSAGE_CHARS] + "..."
    return ErrorInfo(error.code, message)
