"""A broker's log on standard error: lines of text, or one JSON object a line."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import sys
import threading
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path
from types import TracebackType
from typing import Final

from spark_logbus.errors import ConfigError
from spark_logbus.security.audit_log import AUDIT_LOGGER

TEXT: Final = "%(asctime)s %(levelname)s %(message)s"

# What every record has; whatever else is there was passed with ``extra=``.
_COMMON: Final = {
    *vars(logging.LogRecord("", 0, "", 0, "", None, None)),
    "message", "asctime", "taskName",
}  # fmt: skip


class JsonFormatter(logging.Formatter):
    """One JSON object for a record; fields of ``extra=`` stand beside the fixed ones.

    Never fails: a value that JSON has no form for becomes its text. Thread-safe.
    """

    def __init__(self, broker_id: int) -> None:
        super().__init__()
        self._broker_id = broker_id

    def format(self, record: logging.LogRecord) -> str:
        moment = dt.datetime.fromtimestamp(record.created, dt.UTC)
        fields: dict[str, object] = {
            "ts": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "thread": record.threadName,
            "broker": self._broker_id,
        }
        for name, value in vars(record).items():
            if name not in _COMMON and name not in fields:
                fields[name] = value
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = record.stack_info
        # Escaped to ASCII, so that no line separator of Unicode's cuts a line in two.
        return json.dumps(fields, default=str)


def configure(*, format: str, level: str, broker_id: int, audit_file: Path | None = None) -> None:
    """Logs in that form from now on, and exceptions that are not caught as well; the audit log goes
    to a file of its own where one is named. Raises ConfigError if that cannot be written."""
    audit = logging.getLogger(AUDIT_LOGGER)
    audit.setLevel(logging.INFO)
    if audit_file is not None:
        audit.handlers[:] = [_audit_handler(audit_file)]
        audit.propagate = False
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(broker_id) if format == "json" else logging.Formatter(TEXT))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    logging.getLogger("spark_logbus").setLevel(level.upper())
    logging.captureWarnings(capture=True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread


class _PrivateFileHandler(WatchedFileHandler):
    """Appends to a file that others cannot read, and to the next one once that was moved away."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=_open_privately)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # the file cannot be opened anew, by which no request may fail
            self.handleError(record)


def _open_privately(path: str, flags: int) -> int:
    descriptor = os.open(path, flags, 0o600)
    if os.fstat(descriptor).st_uid == os.geteuid():
        os.fchmod(descriptor, 0o600)  # who moves logs away may have made it
    return descriptor


def _audit_handler(path: Path) -> logging.Handler:
    try:
        handler = _PrivateFileHandler(path)
    except OSError as error:
        raise ConfigError(
            f"The audit log cannot be written to {path}: {error.strerror}. Name another file as "
            "audit_file in [logging]."
        ) from error
    handler.setFormatter(logging.Formatter("%(message)s"))
    return handler


def _log_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    logging.getLogger("spark_logbus").critical(
        "The broker ends with a failure that was not foreseen.", exc_info=(kind, error, trace)
    )


def _log_uncaught_in_thread(arguments: threading.ExceptHookArgs) -> None:
    error = arguments.exc_value
    if error is None or isinstance(error, SystemExit):
        return
    logging.getLogger("spark_logbus").critical(
        "The thread %s ended with a failure that was not foreseen.",
        arguments.thread.name if arguments.thread else "of unknown name",
        exc_info=(type(error), error, arguments.exc_traceback),
    )
