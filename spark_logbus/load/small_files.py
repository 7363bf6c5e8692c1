"""Small files of a warehouse or a lake's table, rewritten as few larger ones.

Loads that come often leave a small file in each directory that they bring records for, and readers
spend their time on opening them. A rewrite reads the small files of a directory and stages their
records as one file, or a few; it is a commit of its own, that names the files that it replaces, and
goes through the same steps as a load: staged, counted, committed by one rename, then published. To
publish it, the replaced files are deleted first and the new ones moved into place then. Killed at
any point, the next load finishes or discards it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from typing import Final, TypeVar

File = TypeVar("File", bound=Hashable)

#: Less than what Spark makes of one partition of a shuffle, so that what was rewritten stays.
SMALL_BYTES: Final = 8 << 20

#: Small files of one directory that are worth a rewrite: it reads and writes all of them, so not
#: at each load.
DEFAULT_FILES: Final = 8


def worth_rewriting(
    sizes: Mapping[File, int], *, least: int, directory: Callable[[File], Hashable]
) -> tuple[File, ...]:
    """The small files of directories that hold ``least`` of them or more (pure).

    ``sizes`` are those of all files; ``directory`` tells where one of them is.
    """
    small: dict[Hashable, list[File]] = defaultdict(list)
    for file, size in sizes.items():
        if size < SMALL_BYTES:
            small[directory(file)].append(file)
    return tuple(file for own in small.values() if len(own) >= least for file in own)


def directory_of(name: str) -> str:
    """The directory of a file, by its name from the warehouse's directory on."""
    return name.rpartition("/")[0]
