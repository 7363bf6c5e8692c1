"""A mirror: rounds that are planned, staged, committed and noted, each step safe to be cut short.

*Plan.* One write to the target's ZooKeeper names the offsets of a round. *Stage.* Exactly these are
read from the source, and staged in the same partitions of the target. *Commit.* The round is a
version of an atomic writer, so it is decided once, however often and by which process it is tried.
*Note.* The points of its partitions are written, and the plan is taken away.

A mirror that finds a plan asks first if it is decided. If it is, the round is noted; else it is
done anew. Where its topics are not there any more, a decision that nothing was written closes the
round, so that no slow process can carry the old plan out, and another plan is made. The numbers of
writes tell which it was (see ``plan``).
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from spark_logbus.client import (
    Admin,
    AtomicWrites,
    Cluster,
    Commit,
    RangeReader,
    StagedTask,
    WriteIdentity,
)
from spark_logbus.coordination.mirrors import (
    MirroredTopic,
    Mirrors,
    MirrorState,
    PlannedRound,
    Point,
)
from spark_logbus.errors import (
    BrokerUnavailableError,
    CoordinationError,
    DataLossError,
    InvalidRequestError,
    LockHeldError,
    LogbusError,
)
from spark_logbus.mirror.administration import mirror_lock
from spark_logbus.mirror.audit import RoundReports
from spark_logbus.mirror.config import MirrorConfig
from spark_logbus.mirror.plan import (
    audited,
    closes_round,
    in_turn,
    is_of,
    new_records,
    new_token,
    new_write,
    planned,
    unreadable,
)
from spark_logbus.mirror.points import (
    PlacedRun,
    extended,
    limit_for,
    points_of_round,
)
from spark_logbus.mirror.schemas import SchemaCopier
from spark_logbus.mirror.source.source import NO_SCHEMAS, MirrorSource, SourceTopic, TargetSchemaIds
from spark_logbus.mirror.staging import (
    ATTEMPT,
    CopiedPartition,
    StagedRound,
    in_target,
    stage_round,
)
from spark_logbus.mirror.targets import Targets
from spark_logbus.model import Earliest, Latest, LostOffsets, OffsetRange, TopicPartition
from spark_logbus.offsets.snapshot import Span
from spark_logbus.record.stage_id import stage_id
from spark_logbus.zookeeper import Session

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """Progress of the copy of a partition: up to ``position``, where the source ends at ``end``.
    ``copied_us`` is when what was copied last came to the source, None if that was before this
    process began; ``lost`` are ranges of offsets whose records the source has given up."""

    topic_partition: TopicPartition
    position: int
    end: int
    copied_us: int | None
    lost: tuple[LostOffsets, ...] = ()

    @property
    def records(self) -> int:
        """Offsets that are not copied and not lost; in compacted topics there may be fewer
        records."""
        return Span(0, self.end, self.lost).count(self.position, self.end)


@dataclass(frozen=True, slots=True)
class RoundReport:
    """A round that is over. ``records`` is None where an earlier process had copied them."""

    number: int
    records: int | None
    size_bytes: int
    lost: tuple[OffsetRange, ...]


class Mirror:
    """One run of a mirror; a context manager, which holds the mirror's lock. Not thread-safe, but
    for ``stop``. Source, cluster and session are shared, not owned."""

    def __init__(
        self,
        config: MirrorConfig,
        *,
        source: MirrorSource,
        target: Cluster,
        session: Session,
        schemas: SchemaCopier | None = None,
    ) -> None:
        """``session`` is one with the ZooKeeper of the ``target``. ``schemas`` copies those of
        topics that have some; None where the source has none."""
        self.config = config
        self._source = source
        self._target = target
        self._schemas = schemas
        self._admin = Admin(target)
        self._targets = Targets(self._admin)
        self._writes = AtomicWrites(target)
        self._mirrors = Mirrors(session)
        self._reports = RoundReports(target, name=config.name)
        self._stopping = threading.Event()
        self._run = ""
        self._lock = mirror_lock(session, config.name, doing=f"a mirror of {source.name}")
        self._state = MirrorState(source.name, PlannedRound(), {})
        self._known = False  # whether ZooKeeper has that state
        self._in_doubt = True  # whether a plan that stands may have been carried out
        self._found: Mapping[str, SourceTopic] = {}
        self._schema_ids: dict[str, TargetSchemaIds] = {}
        self._copied_us: dict[TopicPartition, int] = {}
        self._lost: tuple[OffsetRange, ...] = ()
        self._last: TopicPartition | None = None  # of the last round's partitions

    def __enter__(self) -> Self:
        self._lock.acquire()
        try:
            self._reload()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._lock.release()
        except LogbusError as failure:
            logger.warning("The mirror's lock goes with its ZooKeeper session: %s", failure)

    def stop(self) -> None:
        """Breaks off what is being staged; for any thread. A commit under way is finished."""
        self._stopping.set()

    @property
    def stopping(self) -> threading.Event:
        """Set once the mirror is to stop."""
        return self._stopping

    # -- rounds ---------------------------------------------------------------------------

    def copy_round(self) -> RoundReport | None:
        """Does the round that stands, or one of what is new; None if nothing is.

        Raises what the clusters meet, LockHeldError when another process has the mirror, and
        DataLossError, TopicRecreatedError and InvalidRequestError where what is asked for cannot
        be copied. Whatever it raises, calling it again is right.
        """
        self._ensure_lock()
        if self._state.round.ranges and self._in_doubt:
            report = self._settle_standing()
            if report is not None:
                return report
        if not self._state.round.ranges and not self.plan_round():
            return None
        staged = self.stage_round()
        return self.note_round(self.commit_round(staged), staged)

    def plan_round(self) -> bool:
        """Plans what is new; False if nothing is."""
        looked_us = self._target.clock.now_us()
        found = self._source.topics(self.config.topics)
        names = self.config.renaming.targets(found)
        self._require_apart(names)
        # Schemas after the ends: what was written before them had its schema by then.
        self._copy_schemas(found)
        topics = {**self._state.topics, **self._targets.ensure(found, self._state.topics, names)}
        self._found = found
        new = new_records(topics, found, allow_gaps=self.config.allow_gaps)
        self._lost = new.lost
        ranges = in_turn(new.ranges, after=self._last)
        if ranges:
            ranges = self._source.cut(ranges, max_bytes=self.config.round_bytes)
            self._last = ranges[-1].topic_partition
        after = replace(self._state, source=self._source.name, topics=topics)
        if ranges:
            number = self._state.round.number + 1
            round_ = planned(number, ranges, topics, token=new_token())
            copied = {name: topics[name] for name in round_.topic_ids}
            topics |= audited(copied, number, audit=self.config.audit, looked_us=looked_us)
            after = replace(after, round=round_, topics=topics)
        self._write(after)
        self._in_doubt = False
        return bool(ranges)

    def stage_round(self) -> StagedRound:
        """Reads and stages the round that is planned, and its counts if it was planned with them,
        whatever this process is to do later."""
        round_, topics = self._state.round, self._state.topics
        write = new_write(round_.token)
        is_audited = any(topics[name].audited is not None for name in round_.topic_ids)
        try:
            return stage_round(
                self._source, self._target, round_, topics, self._schema_ids,
                readers=self.config.readers, stopping=self._stopping,
                write=write, identity=self._identity(),
                reports=self._reports if is_audited else None,
            )  # fmt: skip
        except BaseException:
            self._reports.forget_schema()
            self._in_doubt = True  # whether the source still has what is planned
            self._writes.discard(write, writer=self._identity().writer)
            raise

    def commit_round(self, staged: StagedRound) -> Commit:
        """Has the round decided, with what was staged unless it was decided before."""
        try:
            self._lock.check()
        except LockHeldError as error:
            raise CoordinationError(
                f"Round {self._state.round.number} was staged and is not committed. {error}"
            ) from error
        self._in_doubt = True
        return self._commit(staged.write, [staged.task])

    def note_round(self, commit: Commit, staged: StagedRound | None) -> RoundReport:
        """Writes down how far the copy has come. ``staged`` is None where another process did it.
        BrokerUnavailableError while not all of the round is visible."""
        self._require_own(commit)
        if not commit.visible:
            raise BrokerUnavailableError(
                f"Round {self._state.round.number} is committed; some of it becomes visible when "
                "the target's brokers that are away are back."
            )
        done, report = self._state.round, RoundReport(self._state.round.number, None, 0, self._lost)
        if staged is None or staged.write != commit.write:
            staged = None
        else:
            parts = staged.copied.values()
            records = sum(part.records for part in parts)
            report = replace(report, records=records, size_bytes=staged.task.size_bytes)
        topics = dict(self._state.topics)
        if not closes_round(commit.write):
            topics |= self._with_points(done, commit.write, staged)
        self._write(replace(self._state, round=PlannedRound(done.number), topics=topics))
        self._in_doubt = False
        for each, part in {} if staged is None else staged.copied.items():
            if part.time_us is not None:
                self._copied_us[each.topic_partition] = part.time_us
        return report

    # -- how far it is --------------------------------------------------------------------

    def lags(self) -> list[PartitionLag]:
        """Returns how far each partition is, as of the last look at the source."""
        found = []
        for name, topic in sorted(self._found.items()):
            entry = self._state.topics.get(name)
            for partition, span in sorted(topic.spans.items()):
                points = () if entry is None else entry.points.get(partition, ())
                at = TopicPartition(name, partition)
                position = points[-1].source if points else span.start
                found.append(
                    PartitionLag(at, position, span.end, self._copied_us.get(at), span.lost)
                )
        return found

    # -- help -----------------------------------------------------------------------------

    def _commit(self, write: int, tasks: Sequence[StagedTask]) -> Commit:
        # Which plan was committed its token tells; records may be fewer when it is done again.
        return self._writes.commit(self._identity(), write, tasks, repetition=None)

    def _identity(self) -> WriteIdentity:
        return WriteIdentity(
            writer=f"mirror:{self.config.name}", version=self._state.round.number, run=self._run
        )

    def _ensure_lock(self) -> None:
        """Makes sure of the lock, and of the state. After a lost session the lock is taken again,
        unless another process has it."""
        try:
            self._lock.check()
        except LockHeldError:
            self._known = False
            self._lock.release()
            self._lock.acquire()
        if not self._known:
            self._reload()

    def _reload(self) -> None:
        self._state = self._mirrors.read(self.config.name)
        self._run = uuid.uuid4().hex  # one that others have succeeded decides nothing any more
        self._in_doubt = self._known = True

    def _write(self, after: MirrorState) -> None:
        if after != self._state:
            self._known = False  # until ZooKeeper has said that it is written
            self._mirrors.write(self.config.name, self._state, after)
            self._state, self._known = after, True

    def _settle_standing(self) -> RoundReport | None:
        """Returns the round that stands, if it is decided; None if it is to be done or planned
        anew."""
        commit = self._writes.find_committed(self._identity())
        if commit is not None:
            return self.note_round(commit, None)
        found = self._source.topics(self.config.topics)
        gone = unreadable(self._state.round, self._state.topics, found)
        if gone:
            logger.warning(
                "Round %d is planned anew, for the source does not have %s any more.",
                self._state.round.number, ", ".join(map(str, gone)),
            )  # fmt: skip
            write = new_write(self._state.round.token, closes=True)
            return self.note_round(self._commit(write, []), None)
        self._copy_schemas(found)
        self._found = found
        self._in_doubt = False
        return None

    def _require_own(self, commit: Commit) -> None:
        """Raises DataLossError if the commit is not of the plan that stands: ZooKeeper's nodes of
        the mirror are not those that it wrote last."""
        now = self._state.round
        if commit.version != now.number or not is_of(commit.write, now.token):
            raise DataLossError(
                f"The mirror {self.config.name!r} has committed another round {commit.version}, "
                f"and its state in ZooKeeper is at round {now.number}: that was removed, or is of "
                "a backup. What it has copied is not known any more; copy into topics of another "
                "name, by a mirror of another name (--name, --rename)."
            )

    def _require_apart(self, names: Mapping[str, str]) -> None:
        """Refuses to publish counts into a topic that is a copy."""
        copied = next((name for name, to in names.items() if to == RoundReports.topic), None)
        if self.config.audit and copied is not None:
            raise InvalidRequestError(
                f"The mirror publishes its counts to {RoundReports.topic}, and is to copy {copied} "
                "into that: nobody could tell the counts of the two clusters apart. Give the "
                "copies other names (--rename main.{topic}), or leave that topic out (--pattern "
                f"'(?!{RoundReports.topic}$).*')."
            )

    def _copy_schemas(self, found: Mapping[str, SourceTopic]) -> None:
        self._schema_ids = {
            name: NO_SCHEMAS
            if self._schemas is None
            else self._schemas.copy_schemas(name, topic.config)
            for name, topic in found.items()
        }

    def _with_points(
        self, done: PlannedRound, write: int, staged: StagedRound | None
    ) -> dict[str, MirroredTopic]:
        """Returns the entries of the round's topics with the points that it adds."""
        known = self._state.topics  # but for one that was forgotten meanwhile
        topics = {name: known[name] for name in done.topic_ids if name in known}
        ranges = [each for each in done.ranges if _is_open(each, topics)]
        targets = {each: in_target(each.topic_partition, topics) for each in ranges}
        ids = {entry.target: entry.target_id for entry in topics.values()}
        ends = self._admin.list_offsets(dict.fromkeys(targets.values(), Latest()), topic_ids=ids)
        points: dict[str, dict[int, tuple[Point, ...]]] = {
            name: dict(entry.points) for name, entry in topics.items()
        }
        for each in ranges:
            name, partition = each.topic_partition.topic, each.topic_partition.partition
            before, end = points[name][partition], ends[targets[each]] or 0
            part = None if staged is None else staged.copied[each]
            placed = self._placed(targets[each], before[-1].target, end, write, part)
            points[name][partition] = extended(
                before,
                points_of_round(before[-1], each, None if part is None else part.runs, placed, end),
                limit=limit_for(len(points[name])),
            )
        return {name: replace(entry, points=points[name]) for name, entry in topics.items()}

    def _placed(
        self, target: TopicPartition, start: int, end: int, write: int, part: CopiedPartition | None
    ) -> list[PlacedRun]:
        """Finds where the records of a write lie in the target, which ended at ``start`` before."""
        if part is not None and end - start == part.records:
            return [PlacedRun(0, part.records, start)]  # nobody else has appended anything
        first = self._admin.list_offsets({target: Earliest()})[target] or 0
        producer_id = stage_id(write, ATTEMPT)
        placed: list[PlacedRun] = []
        with RangeReader(self._target, OffsetRange(target, max(first, start), end)) as reader:
            while (raw := reader.next_encoded()) is not None:
                header = raw.header
                if header.producer_id != producer_id:
                    continue
                run = PlacedRun(header.base_sequence, header.record_count, header.base_offset)
                last = placed[-1] if placed else None
                if last is not None and last.offset + last.records == run.offset:
                    placed[-1] = replace(last, records=last.records + run.records)
                else:
                    placed.append(run)
        return placed


def _is_open(each: OffsetRange, topics: Mapping[str, MirroredTopic]) -> bool:
    """False for a range that was noted by an earlier process, which did not come to the end."""
    entry = topics.get(each.topic_partition.topic)
    return entry is not None and entry.points[each.topic_partition.partition][-1].source < each.end
