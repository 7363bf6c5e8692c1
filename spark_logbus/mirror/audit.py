"""A mirror's copy as a place of the audit: what is in it, and what the mirror has counted.

A mirror is behind its source, and goes on while it is looked at. So both are compared with the
source's records in front of the offsets to which the mirror had come in one round that was noted,
and only what was there after that round is taken of the copy and of the counts: a record that is
missing is missing, and one that is on its way is not. A round that was committed and not noted, as
by a mirror that was killed between the two, is one that has not come yet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from spark_logbus.audit.auditing import AHEAD_US, Place
from spark_logbus.audit.auditing import mirror as any_copy
from spark_logbus.audit.comparison import Copy
from spark_logbus.audit.counts import WindowTally, add
from spark_logbus.audit.ledger import fold, in_windows
from spark_logbus.audit.report import AUDIT_TOPIC, Tier
from spark_logbus.audit.topic import TopicCounts, count_topic, read_reports
from spark_logbus.client import Admin, Cluster
from spark_logbus.coordination.mirrors import MirroredTopic, Mirrors, MirrorState
from spark_logbus.errors import BrokerUnavailableError, InvalidRequestError
from spark_logbus.mirror.reports import round_of_run
from spark_logbus.zookeeper import Session

_LOOK_MS: Final = 30_000
_NEVER_US: Final = 1 << 62  # later than all windows


@dataclass(frozen=True, slots=True)
class CopiedTopic:
    """How far the mirror ``name`` has copied a topic: all of its rounds up to ``number``."""

    name: str
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


def progress_of(name: str, state: MirrorState, topic: str) -> CopiedTopic:
    """By a state of the mirror, in which the topic may be noted before the round is. Pure."""
    entry, standing = state.topics[topic], state.round
    own = [each for each in standing.ranges if each.topic_partition.topic == topic]
    noted = all(entry.points[each.topic_partition.partition][-1].source >= each.end for each in own)
    return CopiedTopic(name, standing.number if noted else standing.number - 1, entry)


def mirror_places(
    source: Cluster,
    topic: str,
    *,
    copy: Cluster,
    copy_topic: str,
    address: str,
    audit_topic: str = AUDIT_TOPIC,
) -> list[Place]:
    """The copy of ``topic`` in another cluster, and what the mirror that made it has counted, if it
    did. A copy that no mirror of logbus has made is compared as it is."""
    name = _mirror_of(source, topic, copy, copy_topic)
    if name is None:
        return [any_copy(copy, copy_topic, name=f"mirror {address}")]
    mirrored = _Mirrored(source, topic, copy, copy_topic, audit_topic, name)
    places = [Place(address, lambda *span: mirrored.held(f"mirror {address}", *span))]
    if mirrored.progress().entry.audited is not None:
        places.append(Place(name, mirrored.counted))
    return places


def _mirror_of(source: Cluster, topic: str, copy: Cluster, copy_topic: str) -> str | None:
    """The name of the mirror that copies that topic into that copy."""
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

    def progress(self) -> CopiedTopic:
        """The mirror's last round. Read until no round begins or ends meanwhile."""
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
        return progress_of(self.name, before, self.topic)

    def held(self, of: str, window_us: int, since_us: int) -> Copy:
        """What is in the copy."""
        progress = self.progress()
        there = count_topic(
            self.copy, self.copy_topic,
            window_us=window_us, since_us=since_us, beyond=progress.target,
        )  # fmt: skip
        due = {
            start: tally - there.beyond.get(start, WindowTally())
            for start, tally in there.tallies.items()
        }
        return self._compared(of, due, progress, window_us, since_us)

    def counted(self, window_us: int, since_us: int) -> Copy:
        """What the mirror has counted since it was last started to count."""
        progress = self.progress()
        audited, total = progress.entry.audited, dict[int, WindowTally]()
        reports = read_reports(
            self.copy, self.audit_topic, self.copy_topic, since_us=max(0, since_us - AHEAD_US)
        )
        for run in fold(reports):
            if (run.tier, run.counter) != (Tier.MIRROR, self.name) or audited is None:
                continue
            if audited.number <= round_of_run(run.run) <= progress.number:
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
