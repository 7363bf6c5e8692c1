"""The inputs of a micro-batch, as Spark has written them into the query's checkpoint.

Before Spark runs a micro-batch it writes the end offsets of all sources to ``offsets/<number>``: a
line with the format's version, one with metadata, then a line for each source. Two attempts at a
micro-batch are the same write where these are the same. A source of logbus tells its start as
well, see ``datasource.stream_offset``.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any, Final

from spark_logbus.client import WriteInputs

logger = logging.getLogger(__name__)

_SCHEME: Final = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):")
# A query reads few sources, of some thousand partitions at most.
_MAX_BYTES: Final = 64 << 20
# Of an offset of logbus: what decides which records are read.
_OF_LOGBUS: Final = ("from", "to", "topics")


def planned_inputs(location: str | None, batch_id: int, *, query: str | None) -> WriteInputs | None:
    """The inputs of the micro-batch; None where its file cannot be read from here, as on a file
    system that is not mounted, or is of another ``query``, whose id is in the metadata."""
    directory = None if location is None else _local(location)
    if directory is None:
        return None
    try:
        if query is not None and _read(directory / "metadata").get("id") != query:
            return None
        path = directory / "offsets" / str(batch_id)
        if path.stat().st_size > _MAX_BYTES:
            return None
        version, _, *sources = path.read_text("utf-8").split("\n")
    except (OSError, ValueError, AttributeError) as error:
        logger.debug("The inputs of micro-batch %d are not known: %s", batch_id, error)
        return None
    if not version.startswith("v"):
        return None
    told, all_of_it = zip(*map(_source, sources), strict=True) if sources else ((), ())
    return WriteInputs.of("; ".join(told), "\n".join(all_of_it))


def _local(location: str) -> Path | None:
    scheme = _SCHEME.match(location)
    if scheme is None:
        return Path(location)
    if scheme[1].lower() != "file":
        return None
    path = location[len(scheme[0]) :]
    return Path("/" + path.lstrip("/")) if path.startswith("/") else None


def _source(line: str) -> tuple[str, str]:
    """The end of one source as it is told, and what of it has to be the same."""
    try:
        offset: Any = json.loads(line)
    except ValueError:
        return line, line
    if not isinstance(offset, dict) or "version" not in offset or "topics" not in offset:
        return line, line
    needed = {name: offset.get(name) for name in _OF_LOGBUS}
    return json.dumps(offset.get("to")), json.dumps(needed, sort_keys=True)


def _read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))
