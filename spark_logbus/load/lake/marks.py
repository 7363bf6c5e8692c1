"""Marks of loads under way: small files in ``_logbus/`` of a table's directory.

A load leaves its mark before it writes the first file, and takes it away when all is done. So the
next load knows of files that no version names, without a look at the whole directory, and of dead
letters that are not in their table yet. Offsets do not stand here: the table alone has them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyarrow import fs as pafs

from spark_logbus.load.commit import Commit, ranges_from_json, ranges_to_json
from spark_logbus.load.errors import WarehouseError
from spark_logbus.model import OffsetRange

_SUFFIX = ".json"
_TOKEN_BITS = 63


@dataclass(frozen=True, slots=True)
class Mark:
    """One load, and what it leaves to do when it has committed. Immutable."""

    staging: str
    number: int
    #: Files with its dead letters, that are to be put into their table.
    letters: tuple[str, ...] = ()
    #: Ranges whose dead letters these take the place of.
    replaced: tuple[OffsetRange, ...] = ()
    #: Offsets that are loaded with it, of all partitions.
    ends: Mapping[int, int] = field(default_factory=dict)

    @property
    def token(self) -> int:
        """The token of its commit, made of the name that no other load has."""
        return int(self.staging.rpartition("-")[2][:16], 16) & ((1 << _TOKEN_BITS) - 1)

    @property
    def prefix(self) -> str:
        """Prefix of the names of its files."""
        return f"part-{self.staging}-"


def new_mark(number: int) -> Mark:
    """Returns the mark of a load with that number."""
    return Mark(Commit.new_staging_name(number), number)


class OwnDirectory:
    """The directory ``_logbus`` of a table."""

    def __init__(self, storage: pafs.FileSystem, path: str, topic: str) -> None:
        self._storage = storage
        self._path = path
        self._topic = topic

    def marks(self) -> list[Mark]:
        """Reads the marks of all loads. One that is cut off is of a load that had not committed."""
        try:
            selector = pafs.FileSelector(self._path, allow_not_found=True)
            names = [info.base_name for info in self._storage.get_file_info(selector)]
            return [self._read(name) for name in sorted(names) if _is_mark(name)]
        except OSError as error:
            raise WarehouseError(f"Cannot look for loads in {self._path}: {error}") from error

    def _read(self, name: str) -> Mark:
        staging = name.removesuffix(_SUFFIX)
        mark = Mark(staging, int(staging.partition("-")[0]))
        with self._storage.open_input_file(f"{self._path}/{name}") as file:
            text = file.read()
        try:
            data = json.loads(text)
            replaced = ranges_from_json(self._topic, data["replaced"])
            ends = {int(partition): end for partition, end in data["ends"].items()}
            return Mark(staging, mark.number, tuple(data["letters"]), replaced, ends)
        except (AttributeError, KeyError, TypeError, ValueError):
            return mark

    def write(self, mark: Mark) -> None:
        """Writes a mark, in place of an earlier one of the same load."""
        text = json.dumps(
            {
                "letters": list(mark.letters),
                "replaced": ranges_to_json(mark.replaced),
                "ends": mark.ends,
            }
        )
        path = f"{self._path}/{mark.staging}{_SUFFIX}"
        try:
            if isinstance(self._storage, pafs.LocalFileSystem):
                _write_whole(path, text)
            else:
                with self._storage.open_output_stream(path) as file:
                    file.write(text.encode())
        except OSError as error:
            raise WarehouseError(f"Cannot write {path}: {error}") from error

    def delete(self, mark: Mark) -> None:
        """Deletes a mark; does nothing where it is gone."""
        self._delete([f"{self._path}/{mark.staging}{_SUFFIX}"])

    def delete_files(self, mark: Mark) -> None:
        """Deletes the files of a load that was not committed and no longer can be."""
        root = self._path.rpartition("/")[0]
        try:
            selector = pafs.FileSelector(root, recursive=True)
            found = self._storage.get_file_info(selector)
        except OSError as error:
            raise WarehouseError(f"Cannot list the files of {root}: {error}") from error
        self._delete(each.path for each in found if each.base_name.startswith(mark.prefix))

    def _delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            try:
                self._storage.delete_file(path)
            except FileNotFoundError:
                continue
            except (OSError, pa.ArrowException) as error:
                raise WarehouseError(f"Cannot delete {path}: {error}") from error


def _is_mark(name: str) -> bool:
    number, dash, unique = name.removesuffix(_SUFFIX).partition("-")
    is_hex = bool(unique) and all(each in "0123456789abcdef" for each in unique)
    return name.endswith(_SUFFIX) and number.isdigit() and bool(dash) and is_hex


def _write_whole(path: str, text: str) -> None:
    """Writes a file that is there as a whole, on disk, or as it was."""
    directory = os.path.dirname(path)
    os.makedirs(directory, exist_ok=True)
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.tmp", path)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
