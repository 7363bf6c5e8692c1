"""Small files of a warehouse, rewritten as few larger ones.

Loads that come often leave a small file in each directory that they bring records for, and readers
spend their time on opening them. A rewrite reads the small files of a directory and stages their
records as one file, or a few; it is a commit of its own, that names the files that it replaces, and
goes through the same steps as a load: staged, counted, committed by one rename, then published. To
publish it, the replaced files are deleted first and the new ones moved into place then. Killed at
any point, the next load finishes or discards it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

#: Less than what Spark makes of one partition of a shuffle, so that what was rewritten stays.
SMALL_BYTES: Final = 8 << 20

#: Small files of one directory that are worth a rewrite: it reads and writes all of them, so not
#: at each load.
DEFAULT_FILES: Final = 8


def worth_rewriting(sizes: Mapping[str, int], *, least: int) -> tuple[str, ...]:
    """The small files of directories that hold ``least`` of them or more, sorted (pure).

    ``sizes`` are those of all files, by name from the warehouse's directory on.
    """
    small: dict[str, list[str]] = defaultdict(list)
    for name, size in sizes.items():
        if size < SMALL_BYTES:
            small[name.rpartition("/")[0]].append(name)
    return tuple(sorted(name for own in small.values() if len(own) >= least for name in own))
