"""Counts of a mirror for the audit, and its copy as a place of the audit.

The counts of a round are reports in the round's own write: staged in the audit topic of the target
beside the records, and decided with them. Whenever a mirror is killed, a count is there if the
records are, and once. Each round is a run of the mirror, which has ended, so that nothing more is
waited for.

A mirror is behind its source, and goes on while it is looked at. So copy and counts are compared
with the source's records in front of the offsets to which the mirror had come in one round that was
noted, and only what was there after that round is taken of the copy and of the counts: a record
that is missing is missing, and one that is on its way is not. A round that was committed and not
noted, as by a mirror that was killed between the two, is one that has not come yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from spark_logbus.audit.auditing import AHEAD_US, Place, topic_place
from spark_logbus.audit.comparison import Copy
from spark_logbus.audit.counts import NOTHING, Tallies, WindowTally, add, tally_times
from spark_logbus.audit.ledger import fold, in_windows
from spark_logbus.audit.report import AUDIT_TOPIC, Tier
from spark_logbus.audit.reporter import AuditConfig, prepare, reports_of_commit
from spark_logbus.audit.topic import TopicCounts, count_topic, read_reports
from spark_logbus.client import Admin, Cluster, Producer
from spark_logbus.client.schemas.topic import WriterSchema
from spark_logbus.coordination.mirrors import MirroredTopic, Mirrors, MirrorState
from spark_logbus.errors import BrokerUnavailableError, InvalidRequestError
from spark_logbus.model import TopicPartition
from spark_logbus.record import parse_header
from spark_logbus.record.timestamps import decode_timestamps
from spark_logbus.zookeeper import Session

_CONFIG: Final = AuditConfig()
_PARTITION: Final = 0  # the one that each audit topic has
_LOOK_MS: Final = 30_000
_NEVER_US: Final = 1 << 62  # later than all windows


# -- counts -------------------------------------------------------------------------------


def tally_encoded(data: memoryview) -> Tallies:
    """Returns the tallies of a verified record batch. Nothing but its times is decoded."""
    return tally_times(decode_timestamps(parse_header(data), data), window_us=_CONFIG.window_us)


class RoundReports:
    """Stages the reports of rounds of the mirror ``name``. Not thread-safe."""

    topic: Final = _CONFIG.topic

    def __init__(self, target: Cluster, *, name: str) -> None:
        self._target = target
        self._name = name
        self._schema: WriterSchema | None = None

    def schema(self) -> WriterSchema:
        """Returns the schema of the audit topic, which is made if need be. Raises what ``prepare``
        does."""
        if self._schema is None:
            self._schema = prepare(self._target, _CONFIG)
        return self._schema

    def forget_schema(self) -> None:
        """Has the schema looked for anew: the audit topic may be another one by now."""
        self._schema = None

    def stage(
        self, producer: Producer, number: int, tallies: Mapping[str, Tallies]
    ) -> dict[TopicPartition, int]:
        """Hands the counts of a round, by topic of the target, over to its ``producer``; returns
        how many records that makes, by partition."""
        reports = reports_of_commit(
            _CONFIG,
            tier=Tier.MIRROR,
            counter=self._name,
            run=f"mirror:{self._name}/{number}",
            tallies=tallies,
            now_us=self._target.clock.now_us(),
        )
        producer.send_many(self.topic, reports, partition=_PARTITION)
        return {TopicPartition(self.topic, _PARTITION): len(reports)}


def _round_of_run(run: str) -> int:
    """Returns the number in a run's name."""
    return int(run.rpartition("/")[2])


# -- the copy as a place ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CopiedTopic:
    """Progress of a mirror with one topic: all of its rounds up to ``number`` are copied."""

    number: int
    entry: MirroredTopic

    @property
    def source(self) -> dict[int, int]:
        """Offsets of the source, by partition."""
        return {at: points[-1].source for at, points in self.entry.points.items()}

    @property
    def target(self) -> dict[int, int]:
        """Offsets of the copy, by partition."""
        return {at: points[-1].target for at, points in self.entry.points.items()}


def progress_of(state: MirrorState, topic: str) -> CopiedTopic:
    """Reads a state of the mirror, in which the topic may be noted before the round is. Pure."""
    entry, standing = state.topics[topic], state.round
    own = [each for each in standing.ranges if each.topic_partition.topic == topic]
    noted = all(entry.points[each.topic_partition.partition][-1].source >= each.end for each in own)
    return CopiedTopic(standing.number if noted else standing.number - 1, entry)


def mirror_places(
    source: Cluster,
    topic: str,
    *,
    copy: Cluster,
    copy_topic: str,
    address: str,
    audit_topic: str = AUDIT_TOPIC,
) -> list[Place]:
    """Makes a place of the copy of ``topic`` in another cluster, and one of what the mirror that
    made it has counted, if it did. A copy that no mirror of logbus has made is compared as it
    is."""
    name = _mirror_of(source, topic, copy, copy_topic)
    if name is None:
        return [topic_place(copy, copy_topic, name=f"mirror {address}")]
    mirrored = _Mirrored(source, topic, copy, copy_topic, audit_topic, name, address)
    if mirrored.progress().entry.audited is None:
        return [mirrored.in_copy]
    return [mirrored.in_copy, mirrored.counted]


def _mirror_of(source: Cluster, topic: str, copy: Cluster, copy_topic: str) -> str | None:
    """Returns the name of the mirror that copies that topic into that copy."""
    topic_id = Admin(source).describe([topic], ends=False)[topic].topic_id
    with _session(copy) as session:
        mirrors = Mirrors(session)
        for name in mirrors.names():
            entry = mirrors.read(name).topics.get(topic)
            if entry is not None and (entry.topic_id, entry.target) == (topic_id, copy_topic):
                return name
    return None


def _session(copy: Cluster) -> Session:
    return Session(str(copy.zookeeper), client_name="audit", expects_cluster=True)


@dataclass(frozen=True, slots=True)
class _Mirrored:
    """A topic and its copy, by the mirror ``name``. The clusters are shared, not owned."""

    source: Cluster
    topic: str
    copy: Cluster
    copy_topic: str
    audit_topic: str
    name: str
    address: str

    def progress(self) -> CopiedTopic:
        """Reads the mirror's last round, until none begins or ends meanwhile."""
        deadline = self.copy.deadline_ms(_LOOK_MS)
        with _session(self.copy) as session:
            mirrors = Mirrors(session)
            before = mirrors.read(self.name)
            while (after := mirrors.read(self.name)).round != before.round:
                if deadline.expired:
                    raise BrokerUnavailableError(
                        f"The mirror {self.name!r} does its rounds faster than they can be looked "
                        "at; try again, or give it larger ones (--round-bytes)."
                    )
                before = after
        if self.topic not in before.topics:
            raise InvalidRequestError(
                f"The mirror {self.name!r} was made to forget {self.topic} while it was audited."
            )
        return progress_of(before, self.topic)

    def in_copy(self, window_us: int, since_us: int) -> Copy:
        """Counts what is in the copy."""
        progress = self.progress()
        there = count_topic(
            self.copy, self.copy_topic,
            window_us=window_us, since_us=since_us, beyond=progress.target,
        )  # fmt: skip
        due = {
            start: tally - there.beyond.get(start, NOTHING)
            for start, tally in there.tallies.items()
        }
        return self._compared(f"mirror {self.address}", due, progress, window_us, since_us)

    def counted(self, window_us: int, since_us: int) -> Copy:
        """Sums up what the mirror has counted since it was last started to count."""
        progress = self.progress()
        audited, total = progress.entry.audited, dict[int, WindowTally]()
        reports = read_reports(
            self.copy, self.audit_topic, self.copy_topic, since_us=max(0, since_us - AHEAD_US)
        )
        for run in fold(reports):
            if (run.tier, run.counter) != (Tier.MIRROR, self.name) or audited is None:
                continue
            if audited.number <= _round_of_run(run.run) <= progress.number:
                windows = in_windows(run, self.copy_topic, window_us=window_us).windows
                add(total, {start: each.tally for (_, start), each in windows.items()})
        copy = self._compared(f"counts of mirror {self.name}", total, progress, window_us, since_us)
        return replace(copy, from_us=_NEVER_US if audited is None else audited.time_us)

    def _compared(
        self,
        of: str,
        tallies: dict[int, WindowTally],
        progress: CopiedTopic,
        window_us: int,
        since_us: int,
    ) -> Copy:
        here = count_topic(
            self.source, self.topic,
            window_us=window_us, since_us=since_us, beyond=progress.source,
        )  # fmt: skip
        return Copy(
            name=of,
            counts=TopicCounts(here.read_at_us, tallies),
            not_yet=here.beyond,
            topic=here.tallies,
        )
