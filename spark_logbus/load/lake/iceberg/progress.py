"""Progress of loads, as a table's property and the summaries of its snapshots have it (pure)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from spark_logbus.load.errors import WarehouseError
from spark_logbus.load.lake.table import Progress

#: Property of the table, and of the summaries of its snapshots.
PROGRESS: Final = "logbus.progress"


@dataclass(frozen=True, slots=True)
class Mark:
    """Progress, and the snapshot that it came with."""

    progress: Progress
    snapshot_id: int
    sequence_number: int

    def to_json(self) -> str:
        progress = self.progress
        return json.dumps(
            {
                "topic-id": progress.topic_id,
                "number": progress.number,
                "token": progress.token,
                "ends": progress.ends,
                "spans": {partition: list(own) for partition, own in progress.spans.items()},
                "snapshot-id": self.snapshot_id,
                "sequence-number": self.sequence_number,
            },
            separators=(",", ":"),
        )

    @staticmethod
    def from_json(text: str, *, table: str) -> Mark:
        try:
            data = json.loads(text)
            progress = Progress(
                data["topic-id"],
                data["number"],
                data["token"],
                {int(partition): end for partition, end in data["ends"].items()},
                {
                    int(partition): [(start, end) for start, end in own]
                    for partition, own in data["spans"].items()
                },
            )
            return Mark(progress, data["snapshot-id"], data["sequence-number"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise WarehouseError(
                f"Property {PROGRESS} of table {table} is {text[:200]!r}, which no load has "
                "written. Set it back to what it was, as the table's older metadata files have it."
            ) from error
