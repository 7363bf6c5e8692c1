"""The state of a writer: the last of its atomic writes that was decided. Pure.

A writer is whoever writes version after version: a streaming query, whose versions are its
micro-batches; an application that names its transactions; or a single batch write. Its versions
rise. Each attempt to write a version is a *write* with a number of its own, of which one at most is
decided.

A decision stands until the next one of its writer, which has to wait until this one is published
everywhere. So what a writer needs is one node, however long it writes.

==============================================  ====================================
the writer's state, when a write is proposed    outcome
==============================================  ====================================
it belongs to another principal                 refused
this very write is decided                      decided (a repeated request),
                                                or refused: it says something else
this write was aborted                          refused
its version or a later one is decided           already: the decision that stands,
                                                or refused: not the write of that version
its run has been succeeded by another           refused
the last decision is not published everywhere   unsettled: that decision
none of these                                   decided
==============================================  ====================================
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec.structs import replace

from spark_logbus.coordination.cluster.topic_records import MAX_PARTITIONS
from spark_logbus.coordination.payloads import NonNegative
from spark_logbus.coordination.writes.content import (
    RememberedVersion,
    WriteContent,
    check_content,
    remember,
    require_same,
)
from spark_logbus.errors import InvalidRequestError, NotAuthorizedError, WriteFencedError
from spark_logbus.model import check_name
from spark_logbus.record import format as fmt
from spark_logbus.record.stage_id import StageIds

# Of runs that were succeeded, and of aborted writes, a writer remembers so many. A zombie older
# than a hundred restarts of its query, or than twenty failed attempts, is not expected.
MAX_ENDED_RUNS: Final = 100
MAX_ABORTED: Final = 20
NO_VERSION: Final = -1
MAX_VERSION: Final = (1 << 63) - 1
# Of a run's id and of a topic's: both are 32 to 36 characters long.
_MAX_ID_LENGTH: Final = 500


class TopicRecords(msgspec.Struct, frozen=True, rename={"topic_id": "id"}):
    """A topic's part of a write: records by partition."""

    topic_id: str
    records: Mapping[NonNegative, NonNegative]


class DecidedWrite(msgspec.Struct, frozen=True, omit_defaults=True):
    """A write as it was decided. ``attempts`` are those that count, in the order of their tasks,
    as ``record.stage_id`` writes them; ``topics`` what is not known to be published. ``mark`` is
    that of what its principal has staged; None: it was decided for nobody in particular."""

    version: int
    write: NonNegative
    attempts: str
    topics: Mapping[str, TopicRecords] = {}
    mark: int | None = None


class WriterState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of a writer, and the content of its node.

    ``last`` is None as long as nothing was decided. ``once``: there will be no other write.
    ``old_us``: when it was first found to be old enough to be forgotten. ``remembered`` says what
    the last versions hold, in their order; it is empty where a release decided that did not say so.
    ``inputs`` are those of the last. ``owner`` is the principal that was the first to decide or
    abort a write as this writer; empty where nobody has asked who does."""

    last: DecidedWrite | None = None
    run: str = ""
    ended_runs: tuple[str, ...] = ()
    aborted: tuple[NonNegative, ...] = ()
    once: bool = False
    changed_us: int
    old_us: int | None = None
    remembered: tuple[RememberedVersion, ...] = ()
    inputs: str = ""
    owner: str = ""

    @property
    def unpublished(self) -> bool:
        return self.last is not None and bool(self.last.topics)


@dataclass(frozen=True, slots=True)
class Proposal:
    """``settled`` is the write that its writer knows to be published everywhere. ``content``, told
    as ``inputs``, is what a repetition is known by; None where the writer knows its own.
    ``repetition_dropped``: a version that was committed before is not compared. ``promises`` are
    those of the brokers that have prepared it, by broker id. ``owner`` is the principal that
    proposes it, empty where nobody asks; ``for_others``: it may act for writers of others."""

    decision: DecidedWrite
    run: str = ""
    settled: int | None = None
    once: bool = False
    content: WriteContent | None = None
    inputs: str = ""
    repetition_dropped: bool = False
    promises: Mapping[int, str] = field(default_factory=dict)
    owner: str = ""
    for_others: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """``state`` is the new one, None where nothing changes. ``standing`` is the decision that is
    in the proposal's way, published or not, as ``already`` says. ``compared``: the proposal is the
    write that was decided under its version, as far as its content tells. ``repeated``: the write
    is decided since an earlier request, as it stands here."""

    state: WriterState | None = None
    standing: DecidedWrite | None = None
    already: bool = field(default=False)
    compared: bool = field(default=False)
    repeated: DecidedWrite | None = None


NOTHING: Final = WriterState(changed_us=0)


def check_decided(decision: DecidedWrite) -> StageIds:
    """Raise InvalidRequestError unless brokers can follow the decision up; its attempts.

    What is decided stands until it is published, so nothing may be decided that nobody publishes:
    a topic that no broker can have, or attempts that are none.
    """
    if not 0 <= decision.version <= MAX_VERSION:
        raise InvalidRequestError(
            f"The version of a write is 0 to {MAX_VERSION}, got {decision.version}."
        )
    attempts = StageIds.of(decision.write, decision.attempts)
    for topic, part in decision.topics.items():
        check_name("topic", topic)
        check_id("topic", part.topic_id)
        for partition, records in part.records.items():
            if not 0 <= partition < MAX_PARTITIONS:
                raise InvalidRequestError(
                    f"A partition is 0 to {MAX_PARTITIONS - 1}, got {partition} of {topic}."
                )
            check_records(records, where=f"{topic}-{partition}")
    return attempts


def check_records(records: int, *, where: str) -> None:
    """Raise InvalidRequestError unless a write can have so many records for a partition."""
    if not 1 <= records <= fmt.MAX_OFFSET:
        raise InvalidRequestError(
            f"A write has 1 to {fmt.MAX_OFFSET} records for a partition that is part of it; got "
            f"{records} for {where}."
        )


def check_id(kind: str, value: str) -> None:
    """Raise InvalidRequestError for what is no id of a topic or run."""
    if not 0 < len(value) <= _MAX_ID_LENGTH:
        raise InvalidRequestError(
            f"The id of a {kind} has 1 to {_MAX_ID_LENGTH} characters, got {len(value)}."
        )


def check_proposal(proposal: Proposal) -> None:
    """Raise InvalidRequestError for a decision that nobody could follow up, or that no writer
    makes."""
    decision = proposal.decision
    attempts = check_decided(decision)
    records = sum(sum(part.records.values()) for part in decision.topics.values())
    if len(attempts) > records:
        raise InvalidRequestError(
            f"A write of {records} records cannot be of {len(attempts)} attempts of tasks: those "
            "that count have staged something."
        )
    if proposal.run:
        check_id("run", proposal.run)
    partitions = sum(len(part.records) for part in decision.topics.values())
    if len(proposal.promises) > partitions:
        raise InvalidRequestError(
            f"A write of {partitions} partitions has at most so many leaders, which promise to "
            f"keep it; got promises of {len(proposal.promises)} brokers."
        )
    if any(not part.records for part in decision.topics.values()):
        raise InvalidRequestError("A write has records for each of its topics; got one with none.")
    if proposal.content is not None:
        check_content(proposal.content, proposal.inputs)


def decide(now: WriterState, proposal: Proposal, *, now_us: int) -> Outcome:
    """The outcome of a proposal. Raises WriteFencedError, WriteMismatchError and
    NotAuthorizedError."""
    _require_owner(now, proposal)
    wanted, last = proposal.decision, now.last
    if last is not None and last.write == wanted.write:
        _require_part_of(last, wanted)
        return Outcome(repeated=last)
    if wanted.write in now.aborted:
        raise WriteFencedError(
            f"The write was aborted, so it cannot be committed (version {wanted.version}); "
            "write it again."
        )
    if last is not None and wanted.version <= last.version:
        compared = proposal.content is not None and not proposal.repetition_dropped
        if proposal.content is not None and compared:
            require_same(
                now.remembered, version=wanted.version, content=proposal.content,
                inputs=proposal.inputs, last=last.version, last_inputs=now.inputs,
            )  # fmt: skip
        return Outcome(standing=last, already=True, compared=compared)
    if proposal.run and proposal.run in now.ended_runs:
        raise WriteFencedError(
            f"Another run of the same query has written since (run {now.run}); this one, "
            f"{proposal.run}, must not write any more. Stop it."
        )
    if last is not None and last.topics and last.write != proposal.settled:
        return Outcome(standing=last)
    ended = tuple(now.ended_runs)
    if now.run and now.run != proposal.run:
        ended = (*ended, now.run)[-MAX_ENDED_RUNS:]
    return Outcome(
        replace(
            now, last=wanted, run=proposal.run, ended_runs=ended, once=proposal.once,
            changed_us=now_us, old_us=None, inputs=proposal.inputs,
            remembered=remember(now.remembered, wanted.version, proposal.content),
            owner=now.owner or proposal.owner,
        )
    )  # fmt: skip


def _require_owner(now: WriterState, proposal: Proposal) -> None:
    if now.owner and proposal.owner not in ("", now.owner) and not proposal.for_others:
        raise NotAuthorizedError(
            f"The writer belongs to {now.owner}, which was the first to write as it, and not to "
            f"{proposal.owner}. Write under another name, or have an administrator allow "
            f"{proposal.owner} to alter the writer (logbus acls add)."
        )


def _require_part_of(last: DecidedWrite, wanted: DecidedWrite) -> None:
    """Raise InvalidRequestError unless the repeated request says what was decided, as far as it is
    known still: what is published has been taken out. A question that names no topic says nothing.
    """
    same = (last.version, last.attempts) == (wanted.version, wanted.attempts) and all(
        (found := wanted.topics.get(topic)) is not None
        and found.topic_id == part.topic_id
        and part.records.items() <= found.records.items()
        for topic, part in last.topics.items()
    )
    if wanted.topics and not same:
        raise InvalidRequestError(
            f"The write {wanted.write} is decided as version {last.version}, and not as what the "
            f"request says now, as version {wanted.version}: its attempts, topics and records stay "
            "as they were decided. Take another number for another write."
        )


def abort(now: WriterState, proposal: Proposal, *, now_us: int) -> Outcome:
    """Let the proposed write never be decided; ``standing`` is that decision, if it is. Raises
    NotAuthorizedError."""
    _require_owner(now, proposal)
    write = proposal.decision.write
    if now.last is not None and now.last.write == write:
        return Outcome(standing=now.last)
    if write in now.aborted:
        return Outcome()
    aborted = (*now.aborted, write)[-MAX_ABORTED:]
    once = proposal.once and now.last is None
    owner = now.owner or ("" if proposal.for_others else proposal.owner)
    return Outcome(
        replace(now, aborted=aborted, once=once, changed_us=now_us, old_us=None, owner=owner)
    )


class Age(enum.Enum):
    """The fate of the state of a writer that has nothing to publish."""

    KEPT = "kept"
    #: It is old for the first time, which is to be noted.
    OLD = "old"
    FORGOTTEN = "forgotten"


def age(now: WriterState, *, now_us: int, keep_us: int) -> Age:
    """Tells whether the state is forgotten, when it is kept for ``keep_us``.

    Two times have to pass: one since the writer's last change, and another since a broker found
    that the first has passed. Both are counted by clocks of whichever brokers there are, any of
    which may have been wrong: a change that was stamped with 1970 is as old as it looks for nobody.
    """
    if now_us - now.changed_us < keep_us:
        return Age.KEPT
    if now.old_us is None or now.old_us > now_us:
        return Age.OLD
    return Age.FORGOTTEN if now_us - now.old_us >= keep_us else Age.KEPT


def published(
    now: WriterState, write: int, done: Mapping[str, Sequence[int]]
) -> WriterState | None:
    """The state once these partitions of the write, by topic, are published; None if it is the
    same."""
    last = now.last
    if last is None or last.write != write or not last.topics:
        return None
    left: dict[str, TopicRecords] = {}
    for topic, part in last.topics.items():
        records = {
            partition: count
            for partition, count in part.records.items()
            if partition not in done.get(topic, ())
        }
        if records:
            left[topic] = TopicRecords(part.topic_id, records)
    if left == last.topics:
        return None
    return replace(now, last=replace(last, topics=left))
