"""Schemas that a command is given: files, or standard input."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from spark_logbus.errors import InvalidRequestError

_MAX_BYTES: Final = 1 << 20  # more than a schema may have


def read_schema(file: Path) -> str:
    """The text of a file; ``-`` is standard input. Raises InvalidRequestError."""
    try:
        with nullcontext(sys.stdin.buffer) if str(file) == "-" else file.open("rb") as stream:
            return stream.read(_MAX_BYTES).decode()
    except OSError as error:
        raise InvalidRequestError(f"Cannot read {file}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{file} is no text in UTF-8: {error}.") from error
