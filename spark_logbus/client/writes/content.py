"""The content that attempts at the same atomic write share, by which a repetition is known. Pure.

Tasks may be cut otherwise when a write is done again, and their records lie in another order. What
stays is how many records each topic gets, and each partition where key or row decide it: records
that have neither go where the producer happens to be.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from spark_logbus.model import TopicPartition
from spark_logbus.protocol import WriteContent

_DIGEST_BYTES: Final = 8
# A topic has few partitions, so this names the ends of most sources.
_MAX_TOLD_CHARACTERS: Final = 16_000


@dataclass(frozen=True, slots=True)
class WriteInputs:
    """The ends of the sources that a write is made of: as a person reads them, and a ``digest``
    that differs where they do."""

    told: str
    digest: str

    @classmethod
    def of(cls, told: str, all_of_it: str) -> WriteInputs:
        """``all_of_it`` is what has to be the same."""
        return cls(told if len(told) <= _MAX_TOLD_CHARACTERS else "", digest([all_of_it]))


UNKNOWN_INPUTS: Final = WriteInputs("", "")


def write_content(
    records: Mapping[TopicPartition, int],
    unplaced: Mapping[str, int],
    *,
    partitions: Mapping[str, int],
    inputs: WriteInputs,
) -> WriteContent:
    """``unplaced``: how many of a topic's records neither key nor row sends to a partition;
    ``partitions``: how many each topic has."""
    totals = Counter[str]()
    for topic_partition, count in records.items():
        totals[topic_partition.topic] += count
    topics = (f"{topic} {totals[topic]} {unplaced.get(topic, 0)}" for topic in sorted(totals))
    placed = [
        f"{at.topic} {at.partition} {count}"
        for at, count in sorted(records.items())
        if not unplaced.get(at.topic)
    ]
    return WriteContent(
        records=sum(totals.values()),
        topics=digest(topics),
        partitions=digest(placed) if placed else "",
        layout=digest(f"{topic} {count}" for topic, count in sorted(partitions.items())),
        inputs=inputs.digest,
    )


def digest(lines: Iterable[str]) -> str:
    """Eight bytes in hexadecimal: enough to tell a few hundred contents apart."""
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=_DIGEST_BYTES).hexdigest()
