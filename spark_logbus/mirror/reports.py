"""Reports of what a round has copied, for the audit, in the round's own write.

They are staged in the audit topic of the target beside the records, and decided with them: whenever
a mirror is killed, a count is there if the records are, and once. Each round is a run of the
mirror, which has ended, so that nothing more is waited for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spark_logbus.audit.counts import Tallies, tally_times
from spark_logbus.audit.report import Tier, as_row
from spark_logbus.audit.reporter import AuditConfig, prepare
from spark_logbus.audit.run import Run, RunIdentity
from spark_logbus.client import Cluster, Producer
from spark_logbus.client.schemas.topic import WriterSchema
from spark_logbus.model import TopicPartition
from spark_logbus.record import parse_header
from spark_logbus.record.timestamps import decode_timestamps

_CONFIG: Final = AuditConfig()
_PARTITION: Final = 0  # the one that each audit topic has


def run_of_round(mirror: str, number: int) -> str:
    """The run's name in the audit."""
    return f"mirror:{mirror}/{number}"


def round_of_run(run: str) -> int:
    """The number in such a name."""
    return int(run.rpartition("/")[2])


def tally_encoded(data: memoryview) -> Tallies:
    """The tallies of a verified record batch, by window. Nothing but its times is decoded."""
    times = decode_timestamps(parse_header(data), data)
    return tally_times(times, window_us=_CONFIG.window_ms * 1_000)


class RoundReports:
    """Stages the reports of rounds of the mirror ``name``. Not thread-safe."""

    topic: Final = _CONFIG.topic

    def __init__(self, target: Cluster, *, name: str) -> None:
        self._target = target
        self._name = name
        self._schema: WriterSchema | None = None

    def schema(self) -> WriterSchema:
        """Of the audit topic, which is made if need be. Raises what ``prepare`` does."""
        if self._schema is None:
            self._schema = prepare(self._target, _CONFIG)
        return self._schema

    def forget_schema(self) -> None:
        """Look for it anew: the audit topic may be another one by now."""
        self._schema = None

    def stage(
        self, producer: Producer, number: int, tallies: Mapping[str, Tallies]
    ) -> dict[TopicPartition, int]:
        """Hand over the counts of the round, by topic of the target, to its ``producer``; how many
        records that makes, by partition."""
        now_us = self._target.clock.now_us()
        run = Run(
            RunIdentity(
                tier=Tier.MIRROR,
                counter=self._name,
                run=run_of_round(self._name, number),
                interval_us=_CONFIG.interval_ms * 1_000,
                window_us=_CONFIG.window_ms * 1_000,
            )
        )
        for topic, windows in tallies.items():
            run.add(topic, windows)
        rows = [as_row(report) for report in run.draft(now_us=now_us, last=True).reports]
        producer.send_many(self.topic, rows, partition=_PARTITION)
        return {TopicPartition(self.topic, _PARTITION): len(rows)}
