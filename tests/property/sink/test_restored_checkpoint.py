"""A query whose checkpoint is put back: no record is missing or there twice without an error.

A model of Spark plans micro-batches from the last state of its checkpoint; what the sink decides
is the real thing, from the state of the writer on.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_logbus.client import WriteInputs
from spark_logbus.client.writes.content import UNKNOWN_INPUTS, write_content
from spark_logbus.coordination.writes.content import WriteContent
from spark_logbus.coordination.writes.decisions import (
    NOTHING,
    DecidedWrite,
    Proposal,
    WriterState,
    decide,
)
from spark_logbus.errors import WriteMismatchError
from spark_logbus.model import TopicPartition
from tests.property.examples import examples

SOURCES = 2
TARGETS = 2
Ends = tuple[int, ...]


@dataclass
class Query:
    """Copies two partitions to a topic. Of each record ``keep`` says whether a filter lets it
    through; ``states`` are the ends of the checkpoint's micro-batches, each of which is done."""

    keep: list[list[bool]]
    keyed: bool
    states: list[Ends] = field(default_factory=lambda: [(0,) * SOURCES])
    writer: WriterState = NOTHING
    copied: Counter[tuple[int, int]] = field(default_factory=Counter)
    writes: int = 0

    def trigger(self, ends: Ends, *, tells_inputs: bool = True) -> None:
        """Do the next micro-batch, up to there."""
        version, start = len(self.states) - 1, self.states[-1]
        rows = [
            (source, offset)
            for source in range(SOURCES)
            for offset in range(start[source], ends[source])
            if self.keep[source][offset]
        ]
        self.writes += 1
        records = Counter(
            TopicPartition("t", sum(row) % TARGETS if self.keyed else self.writes % TARGETS)
            for row in rows
        )
        known = UNKNOWN_INPUTS
        if tells_inputs:
            known = WriteInputs.of(str(ends), f"{start} {ends}")
        told = write_content(
            records, {} if self.keyed or not rows else {"t": len(rows)},
            partitions={"t": TARGETS} if rows else {}, inputs=known,
        )  # fmt: skip
        content = WriteContent(*msgspec.structs.astuple(told))
        proposal = Proposal(
            DecidedWrite(version, self.writes, "0", {}), content=content, inputs=known.told
        )
        outcome = decide(self.writer, proposal, now_us=1)
        if outcome.state is not None and rows:  # without, it is only looked at
            self.writer = outcome.state
            self.copied.update(rows)
        self.states.append(ends)

    def wanted(self) -> Counter[tuple[int, int]]:
        return Counter(
            (source, offset)
            for source in range(SOURCES)
            for offset in range(self.states[-1][source])
            if self.keep[source][offset]
        )


@settings(max_examples=examples(400))
@given(seed=st.integers(0, 2**32), keyed=st.booleans(), kept=st.sampled_from([0.0, 0.3, 1.0]))
def test_a_checkpoint_that_is_put_back_loses_and_doubles_nothing(
    seed: int, keyed: bool, kept: float
) -> None:
    chance = random.Random(seed)
    keep = [[chance.random() < kept for _ in range(100)] for _ in range(SOURCES)]
    query, available = Query(keep, keyed), [0] * SOURCES
    try:
        for _ in range(chance.randint(1, 12)):
            available = [end + chance.randint(0, 8) for end in available]
            for _ in range(chance.randint(1, 3)):
                query.trigger(limited(query.states[-1], available, chance.choice([1, 3, 6, 99])))
            if chance.random() < 0.4:
                del query.states[chance.randint(1, len(query.states)) :]
        while query.states[-1] != tuple(available):
            query.trigger(limited(query.states[-1], available, chance.choice([4, 99])))
    except WriteMismatchError:
        assert max(query.copied.values()) == 1
        return
    assert query.copied == query.wanted()


def limited(start: Ends, available: list[int], limit: int) -> Ends:
    """Takes ``limit`` records at most, shared out as by a source with ``maxOffsetsPerTrigger``."""
    new = [end - begin for begin, end in zip(start, available, strict=True)]
    if sum(new) <= limit:
        return tuple(available)
    shares = [count * limit / sum(new) for count in new]
    return tuple(
        begin + (int(share) or min(1, count))
        for begin, share, count in zip(start, shares, new, strict=True)
    )
