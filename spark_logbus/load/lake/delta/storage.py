"""Storage of a Delta table: where it is, how its files are opened, and errors in plain words."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs as pafs

from spark_logbus.errors import ConfigError
from spark_logbus.load.errors import WarehouseError

_S3: Final = ("s3", "s3a")
#: Stores that let one writer alone make a file, by the schemes of their URIs.
_STORES: Final = (*_S3, "gs", "az", "azure", "adl", "abfs", "abfss", "hdfs")

#: Options of S3 that decide whether two writers can make one commit, by the names that they have
#: in lower case.
_UNSAFE_RENAME: Final = "aws_s3_allow_unsafe_rename"
_LOCKING: Final = "aws_s3_locking_provider"
_CONDITIONAL_PUT: Final = ("aws_conditional_put", "conditional_put")

_COLORS: Final = re.compile(r"\x1b\[[0-9;]*m")
_SECRET: Final = re.compile(r"key|secret|token|password|sas|signature|credential", re.IGNORECASE)
_SHORTEST: Final = 4  # of a secret; what is shorter is found in any text
_QUERY: Final = re.compile(r"(\w+://[^\s?]*)\?[^\s\"')]*")


@dataclass(frozen=True, slots=True)
class DeltaStorage:
    """Directory of a table. Immutable and picklable."""

    #: An absolute path of this machine, or a URI; without a slash at the end.
    root: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(uri: str, options: Mapping[str, str]) -> DeltaStorage:
        """Parses a path or URI. Raises ConfigError for a store, or for options of it, with which
        two writers could make the same commit."""
        root = _root(uri)
        if root.startswith("/"):
            return DeltaStorage(root, dict(options))
        return DeltaStorage(root, _safe(options, root) if root.startswith("s3:") else dict(options))

    @property
    def is_local(self) -> bool:
        return self.root.startswith("/")

    def filesystem(self) -> pafs.FileSystem:
        """Opens the storage."""
        if self.is_local:
            return pafs.LocalFileSystem()
        with self.errors("open"):
            return pafs.PyFileSystem(_Handler(self.root, dict(self.options)))

    def path(self, relative: str) -> str:
        """Path for ``filesystem`` of a file in the table's directory."""
        return f"{self.root}/{relative}" if self.is_local else relative

    def relative(self, path: str) -> str:
        """Path from the table's directory on, of one for ``filesystem``."""
        return path.removeprefix(f"{self.root}/") if self.is_local else path

    @contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Errors of the library and of its storage while it tries to ``what`` the table, as one
        WarehouseError."""
        try:
            yield
        # Values that it cannot take are told by a ValueError or a TypeError.
        except (DeltaError, OSError, pa.ArrowException, ValueError, TypeError) as error:
            text = f"Cannot {what} the Delta table {self.root}: {self.reason(error)}"
            # Not "from error": its text may have what is left out of ours.
            raise WarehouseError(text) from None

    def reason(self, error: BaseException) -> str:
        """Text of an error on one line, without what options keep secret."""
        text = _COLORS.sub("", str(error)).replace("↳", " ")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        # URLs of some stores carry a signature.
        shown = _QUERY.sub(r"\1", ": ".join(lines)) or type(error).__name__
        for name, value in self.options.items():
            if len(value) >= _SHORTEST and _SECRET.search(name):
                shown = shown.replace(value, "***").replace(quote(value, safe=""), "***")
        return shown


class _Handler(DeltaStorageHandler):
    """Files of the library's storage, for Arrow."""

    def open_output_stream(
        self, path: str, metadata: dict[str, str] | None = None
    ) -> pa.PythonFile:
        return pa.PythonFile(_Output(self._handler.open_output_stream(path, metadata)), mode="w")


class _Output:
    """A stream of the library, which takes bytes alone, for Arrow, which also gives buffers."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def write(self, data: Any) -> int:
        return int(self._stream.write(bytes(data)))

    def flush(self) -> None:
        self._stream.flush()

    def tell(self) -> int:
        return int(self._stream.tell())

    def close(self) -> None:
        self._stream.close()


def _root(uri: str) -> str:
    """The one way to write a location (pure, but for a relative path). Raises ConfigError."""
    scheme, colon, _ = uri.partition(":")
    if not colon or "/" in scheme:
        root = os.path.abspath(uri)
    else:
        parts = urlsplit(uri)
        if parts.scheme == "file":
            if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
                raise ConfigError(
                    f"--delta is {uri}, a file of the host {parts.netloc or parts.path!r}; "
                    "expected a path of this machine, as in file:///warehouse/flights."
                )
            # Not the part before "?" or "#" alone, which may be in a name.
            root = os.path.abspath(unquote(uri[len("file:") :].removeprefix("//localhost")))
        elif parts.scheme in _STORES and parts.netloc and not parts.query and not parts.fragment:
            scheme = "s3" if parts.scheme in _S3 else parts.scheme
            rest = "/".join(each for each in parts.path.split("/") if each)
            root = f"{scheme}://{parts.netloc}/{rest}"
        else:
            raise ConfigError(
                f"--delta is {uri}; Delta tables are written to local paths and to "
                f"{', '.join(f'{each}://' for each in _STORES)}, where a commit cannot be made "
                "twice. Name a table there, or load into a directory with --warehouse."
            )
    if "%" in root:
        raise ConfigError(
            f"--delta is {uri}, with a % in its path, which the library deltalake takes for the "
            "beginning of an escaped character. Name a directory without it."
        )
    root = re.sub("^/+", "/", root).rstrip("/")
    if not root or (root.count("/") < 3 and "://" in root):
        raise ConfigError(f"--delta is {uri}, expected a directory in it for the table.")
    return root


def _safe(options: Mapping[str, str], root: str) -> dict[str, str]:
    """Options of S3 with which the second of two commits fails. Raises ConfigError for others."""
    given = {name.lower(): value for name, value in options.items()}
    told = {name.lower(): value for name, value in os.environ.items()}
    if (given.get(_UNSAFE_RENAME) or told.get(_UNSAFE_RENAME, "")).lower() in ("true", "1", "yes"):
        raise ConfigError(
            f"{_UNSAFE_RENAME.upper()} is set, with which two loads into {root} could commit one "
            "over the other. Leave it out: commits are made with conditional writes."
        )
    both = told | given
    if any(name in both for name in (_LOCKING, *_CONDITIONAL_PUT)):
        conditional = [both[name] for name in _CONDITIONAL_PUT if name in both]
        if any(each.lower() in ("disabled", "none", "") for each in conditional):
            raise ConfigError(
                f"{_CONDITIONAL_PUT[0]} is {conditional[0]!r}, without which two loads into {root} "
                "could commit one over the other. Leave it out, or give etag."
            )
        return dict(options)
    return {**options, _CONDITIONAL_PUT[0]: "etag"}
