"""The commit file of one load: the offsets that are in, the files that hold them, and the
schema and layout that the warehouse has with them.

A commit that an earlier release can go on from is written in format 1, as that release did. What
it must not overlook makes it format 2, which it refuses: another layout than by day, dead letters,
and files that take the place of others.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.types import StructType

from spark_logbus.load.errors import WarehouseError
from spark_logbus.load.layout import DEFAULT_LAYOUT, Layout
from spark_logbus.model import OffsetRange, TopicPartition

COMMIT_VERSION = 2
#: Records whose values do not decode; readers of the warehouse do not look there.
DEAD_LETTERS = "_logbus/dead_letters"
_DIGITS = 20
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Commit:
    """One committed load. Immutable."""

    number: int
    staging: str  # the name of its directory under staging/
    topic_id: str
    ranges: tuple[OffsetRange, ...]  # what came in, without the empty ones
    ends: dict[int, int]  # of all partitions, also those that had nothing new
    records: int
    files: tuple[str, ...]  # relative to the topic's directory: date=.../part-...

    schema: StructType | None = None
    """Of this load and all before it, without the columns of the period. Earlier releases did not
    keep it."""

    layout: Layout = DEFAULT_LAYOUT
    dead_letters: int = 0  # beside the records, in files under DEAD_LETTERS
    replaces: tuple[str, ...] = ()  # whose records are in ``files`` instead

    def __post_init__(self) -> None:
        if self.number < 1:
            raise WarehouseError(f"Loads are numbered from 1, got {self.number}.")

    @property
    def file_name(self) -> str:
        """Name that sorts as the number does."""
        return f"{self.number:0{_DIGITS}d}{_SUFFIX}"

    @property
    def version(self) -> int:
        """The oldest format that tells all of it."""
        known = self.layout == DEFAULT_LAYOUT and not self.dead_letters and not self.replaces
        return 1 if known else 2

    @staticmethod
    def staging_name(number: int, unique: str) -> str:
        return f"{number:0{_DIGITS}d}-{unique}"

    @staticmethod
    def new_staging_name(number: int) -> str:
        """Returns a name that no other load has."""
        return Commit.staging_name(number, uuid.uuid4().hex)

    def rewritten(
        self,
        staging: str,
        files: tuple[str, ...],
        *,
        replaces: tuple[str, ...],
        schema: StructType | None,
    ) -> Commit:
        """Returns the next commit, of the same offsets, with ``files`` in the place of others."""
        return replace(
            self,
            number=self.number + 1,
            staging=staging,
            ranges=(),
            records=0,
            files=files,
            schema=schema,
            dead_letters=0,
            replaces=replaces,
        )

    def to_json(self) -> str:
        return json.dumps(
            {
                "version": self.version,
                "number": self.number,
                "staging": self.staging,
                "topic_id": self.topic_id,
                "ranges": ranges_to_json(self.ranges),
                "ends": {str(partition): end for partition, end in sorted(self.ends.items())},
                "records": self.records,
                "files": list(self.files),
                "schema": None if self.schema is None else self.schema.jsonValue(),
                **({} if self.version == 1 else self._added()),
            },
            indent=1,
        )

    def _added(self) -> dict[str, Any]:
        """Keys that format 2 has besides."""
        return {
            "layout": self.layout.to_json(),
            "dead_letters": self.dead_letters,
            "replaces": list(self.replaces),
        }

    @staticmethod
    def from_json(topic: str, text: str) -> Commit:
        """Raises WarehouseError for what is no commit, or one of a newer release."""
        try:
            data = json.loads(text)
            if not 1 <= data["version"] <= COMMIT_VERSION:
                raise WarehouseError(
                    f"Load {data['number']} was committed in format {data['version']}, this "
                    f"release knows up to {COMMIT_VERSION}; use the newer one that wrote it."
                )
            schema, added = data.get("schema"), data["version"] > 1
            return Commit(
                data["number"],
                data["staging"],
                data["topic_id"],
                ranges_from_json(topic, data["ranges"]),
                {int(partition): end for partition, end in data["ends"].items()},
                data["records"],
                tuple(data["files"]),
                None if schema is None else StructType.fromJson(schema),
                Layout.from_json(data["layout"]) if added else DEFAULT_LAYOUT,
                data["dead_letters"] if added else 0,
                tuple(data["replaces"]) if added else (),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise WarehouseError(
                f"A commit file is damaged ({error!r}): {text[:80]!r}. Restore it before loading "
                "on; it says which records are in."
            ) from error


def ranges_to_json(ranges: Iterable[OffsetRange]) -> list[dict[str, Any]]:
    return [
        {"partition": each.topic_partition.partition, "start": each.start, "end": each.end}
        for each in ranges
    ]


def ranges_from_json(topic: str, data: Iterable[Mapping[str, Any]]) -> tuple[OffsetRange, ...]:
    """Raises KeyError or TypeError for what ``ranges_to_json`` did not make."""
    return tuple(
        OffsetRange(TopicPartition(topic, each["partition"]), each["start"], each["end"])
        for each in data
    )


def newest(names: Iterable[str]) -> str | None:
    """Returns the file of the last load, of the names in the directory of commits."""
    commits = [
        name
        for name in names
        if name.endswith(_SUFFIX) and len(name) == _DIGITS + len(_SUFFIX) and name[0].isdigit()
    ]
    return max(commits, default=None)
