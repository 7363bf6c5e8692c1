"""Rules for the state of a partition: who may lead it, and who is in sync. Pure.

A broker leads what the state says, and the log with which it does so has to be the one that is in
sync, or the only one. A member whose log is another one, or lacks what was acknowledged, is no
member any more as soon as it says so, if there is another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from spark_logbus.coordination.cluster.topic_records import LeadershipClaim
from spark_logbus.coordination.payloads import PartitionState, TopicPayload
from spark_logbus.errors import InvalidRequestError, LogMissingError, NotLeaderError
from spark_logbus.log_ids import may_be_same_log
from spark_logbus.lost_ends import go_on_at
from spark_logbus.model import TopicPartition


class Ruling(NamedTuple):
    """Answer to a claim: the state to be written, if there is one, and why the claim is refused, if
    it is."""

    state: PartitionState | None
    refusal: NotLeaderError | LogMissingError | None = None


#: Answers a claim to lead a partition, of which this is the state; None: it was never led.
Rule = Callable[[LeadershipClaim, PartitionState | None], Ruling]


def leads_on(broker_id: int) -> Rule:
    """Lets a broker lead in a new epoch what the state says that it leads, with the members that
    are in sync; and what nobody has led."""

    def rule(claim: LeadershipClaim, now: PartitionState | None) -> Ruling:
        if now is None:
            return Ruling(_first(claim, broker_id))
        if now.leader != broker_id:
            return Ruling(None, _is_led_by_another(claim, now, broker_id))
        members = now.in_sync or [broker_id]
        if (flaw := _flaw(claim, now, broker_id, members)) is not None:
            return Ruling(_without_claimant(claim, now, broker_id), flaw)
        return Ruling(_led(claim, now, broker_id, members, end=_later(claim.end, now.end)))

    return rule


def is_elected(broker_id: int, live: Collection[int]) -> Rule:
    """Lets a member that is in sync take the lead of a broker that does not live or is no member
    any more, with the members that live."""

    def rule(claim: LeadershipClaim, now: PartitionState | None) -> Ruling:
        where = claim.topic_partition
        if now is None:
            return Ruling(
                None, NotLeaderError(f"{where} was never led, so nobody is elected in its place.")
            )
        if now.leader == broker_id or (now.leader in live and now.leader in now.in_sync):
            return Ruling(None, _is_led_by_another(claim, now, broker_id))
        if (flaw := _flaw(claim, now, broker_id, now.in_sync)) is not None:
            return Ruling(_without_claimant(claim, now, broker_id), flaw)
        members = [each for each in now.in_sync if each in live or each == broker_id]
        return Ruling(_led(claim, now, broker_id, members, end=claim.end))

    return rule


def leaves_lead(broker_id: int, live: Collection[int]) -> Rule:
    """Lets a leader whose log takes nothing any more leave those that are in sync, so that another
    is elected in its place; not where no other lives."""

    def rule(claim: LeadershipClaim, now: PartitionState | None) -> Ruling:
        where = claim.topic_partition
        if now is None or now.leader != broker_id:
            leader = "nobody" if now is None else f"broker {now.leader}"
            return Ruling(
                None, NotLeaderError(f"Broker {broker_id} does not lead {where}: {leader} does.")
            )
        left = without_member(now, broker_id)
        if left is None or {*left.in_sync}.isdisjoint(live):
            return Ruling(
                None,
                NotLeaderError(
                    f"Nobody can be elected leader of {where} in the place of broker {broker_id}: "
                    f"of those in sync, {listed(now.in_sync)}, no other runs."
                ),
            )
        return Ruling(left)

    return rule


def is_elected_unclean(
    broker_id: int, live: Callable[[], Collection[int]], *, leader_epoch: int
) -> Rule:
    """Lets a broker that is not in sync lead alone what was led in that epoch last, where nobody
    who is lives and can lead. What its log lacks is lost: that goes on behind all that was ever
    there (see ``PartitionState.go_on_at``)."""

    def rule(claim: LeadershipClaim, now: PartitionState | None) -> Ruling:
        where = claim.topic_partition
        if now is None or broker_id in now.in_sync:
            return Ruling(
                None,
                NotLeaderError(
                    f"Broker {broker_id} needs no unclean election to lead {where}: "
                    f"{'nobody has led it yet' if now is None else 'it is in sync'}."
                ),
            )
        if now.leader_epoch != leader_epoch:  # what would be lost is not what was looked at
            return Ruling(None, _is_led_by_another(claim, now, broker_id))
        if able := able_to_lead(now, live()):
            return Ruling(
                None,
                NotLeaderError(
                    f"Broker {broker_id} is not elected leader of {where}: what its log lacks "
                    f"would be lost, and brokers {listed(able)}, which are in sync, run."
                ),
            )
        led = _led(claim, now, broker_id, [broker_id], end=claim.end)
        behind = behind_all(now, claim.end or 0)
        return Ruling(
            msgspec.structs.replace(
                led, given_up=now.leader_epoch, end=behind, go_on_at=behind, keep=True
            )
        )

    return rule


def is_refused(
    broker_id: int, now: PartitionState, claim: LeadershipClaim, why: str, kept_end: int | None
) -> Ruling:
    """Lets a broker note why it does not serve what it leads, or alone may lead: as its leader in
    the next epoch then, so that another can be elected, or the log given up. Where another is in
    sync, that one is to lead, and the broker is a member no more."""
    where = claim.topic_partition
    if broker_id != now.leader and now.in_sync != [broker_id]:
        return Ruling(
            None,
            NotLeaderError(f"Broker {broker_id} does not lead {where}: broker {now.leader} does."),
        )
    if (left := without_member(now, broker_id)) is not None:
        return Ruling(
            left,
            NotLeaderError(
                f"Broker {broker_id} cannot lead {where} ({why}), and brokers "
                f"{listed(left.in_sync)} are in sync: one of them is to."
            ),
        )
    end, epoch = _later(claim.end, now.end), now.leader_epoch
    if broker_id != now.leader:
        # What was acknowledged was on its disk too: without it, it does not lead after this either.
        end, epoch = _later(end, now.committed), epoch + 1
    return Ruling(
        msgspec.structs.replace(
            now, leader=broker_id, leader_epoch=epoch, refused=why, end=end, kept_end=kept_end
        )
    )


def behind_all(now: PartitionState, end: int) -> int:
    """Returns an offset behind all that a partition may have had, whose log ends at ``end``."""
    return go_on_at(max(end, now.end or 0, now.committed or 0, now.go_on_at or 0))


def able_to_lead(now: PartitionState, live: Collection[int]) -> list[int]:
    """Returns the brokers in sync that live and do not refuse to lead."""
    return [
        each
        for each in now.in_sync or [now.leader]
        if each in live and not (each == now.leader and now.refused is not None)
    ]


class MembersChange(NamedTuple):
    """A change of who is in sync of a partition that is led in that epoch: the ids of the logs of
    the brokers that join, and the brokers that leave. ``since_us`` is the time of the move in which
    those have told of their logs to which the partition is not assigned."""

    topic_partition: TopicPartition
    topic_id: str
    leader_epoch: int
    add: Mapping[int, str]
    remove: Collection[int]
    since_us: int = 0


def changed_by_leader(
    now: PartitionState | None, change: MembersChange, *, leader: int, payload: TopicPayload
) -> PartitionState:
    """Returns the state as a leader changes it, of a topic with that payload. Raises NotLeaderError
    for what it does not lead in that epoch, InvalidRequestError."""
    where = change.topic_partition
    if now is None or (now.leader, now.leader_epoch) != (leader, change.leader_epoch):
        led = "nobody" if now is None else f"broker {now.leader} in epoch {now.leader_epoch}"
        raise NotLeaderError(
            f"Broker {leader} does not lead {where} in epoch {change.leader_epoch}: {led} does."
        )
    if leader not in now.in_sync:
        raise NotLeaderError(
            f"Broker {leader} does not lead {where} any more: it has left those in sync, "
            f"{listed(now.in_sync)}, one of which is to be elected."
        )
    move = payload.moves.get(where.partition)
    eligible = {*payload.partitions[where.partition]}
    if move is not None and not move.error and move.since_us == change.since_us:
        eligible |= {*move.to}
    return members_changed(where, now, add=change.add, remove=change.remove, eligible=eligible)


def members_changed(
    topic_partition: TopicPartition,
    now: PartitionState,
    *,
    add: Mapping[int, str],
    remove: Collection[int],
    eligible: Collection[int],
) -> PartitionState:
    """Returns the state with members taken in, with the ids of their logs, and dropped. Raises
    InvalidRequestError for a change that no leader makes."""
    if now.leader in remove:
        raise InvalidRequestError(
            f"Broker {now.leader} leads {topic_partition} and so is in sync; it cannot be removed."
        )
    if both := sorted({*add} & {*remove}):
        raise InvalidRequestError(
            f"Brokers {listed(both)} are to be both added to and removed from those in sync of "
            f"{topic_partition}."
        )
    # One that is in sync with that log already was taken in by a request of before, whose reply was
    # lost: the leader is to hear of it, and drops it.
    there = {each for each, log_id in add.items() if now.replicas.get(each) == log_id}
    if strangers := sorted({*add} - {*eligible} - (there & {*now.in_sync})):
        raise InvalidRequestError(
            f"Brokers {listed(strangers)} cannot be in sync of {topic_partition}: it is neither "
            f"assigned to them nor moving there. It is assigned to {listed(eligible)}."
        )
    if nameless := sorted(each for each, log_id in add.items() if not log_id):
        raise InvalidRequestError(
            f"Brokers {listed(nameless)} cannot be in sync of {topic_partition} without the ids "
            "of their logs."
        )
    members = [each for each in now.in_sync if each not in remove]
    members += [each for each in sorted(add) if each not in members]
    replicas = {each: now.replicas[each] for each in members if each in now.replicas}
    return msgspec.structs.replace(now, in_sync=members, replicas={**replicas, **add})


#: Assigns a partition of a topic, of which this is the state, to a broker that is elected.
Joins = Callable[[TopicPayload, int, PartitionState], TopicPayload]


def joins_by_move(broker_id: int, live: Collection[int]) -> Joins:
    """Lets a broker join those to which a partition that moves to it is assigned. The move stands.
    It takes the place of one that is to leave, is not in sync and does not live: else the partition
    would have one replica more, of which more have to be in sync."""
    return lambda payload, partition, now: _joined(
        payload, partition, broker_id, useful={*now.in_sync, *live}
    )


def _joined(
    payload: TopicPayload, partition: int, broker_id: int, *, useful: Collection[int]
) -> TopicPayload:
    assigned, to = payload.partitions[partition], payload.moves[partition].to
    leaves = next((each for each in assigned if each not in to and each not in useful), None)
    brokers = [broker_id if each == leaves else each for each in assigned]
    if leaves is None:
        brokers.append(broker_id)
    return msgspec.structs.replace(payload, partitions={**payload.partitions, partition: brokers})


def arrived(
    now: PartitionState, to: Sequence[int], told: Mapping[int, str]
) -> PartitionState | None:
    """Returns the state with those alone in sync to whom the partition moves, None if one of them
    is not. One that has just ``told`` the id of its log, and that it has everything, counts."""
    replicas = {each: now.replicas[each] for each in to if each in now.replicas}
    for broker_id, log_id in told.items():
        if broker_id in now.in_sync and replicas.get(broker_id, "") != log_id:
            return None
    if not {*to} <= {*now.in_sync, *told}:
        return None
    return msgspec.structs.replace(now, in_sync=[*to], replicas={**replicas, **told})


def without_member(now: PartitionState, broker_id: int) -> PartitionState | None:
    """Returns the state when a broker is in sync no more, None if nobody else is."""
    members = [each for each in now.in_sync if each != broker_id]
    if not members:
        return None
    replicas = {each: now.replicas[each] for each in members if each in now.replicas}
    return msgspec.structs.replace(now, in_sync=members, replicas=replicas)


def listed(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, brokers))


def _first(claim: LeadershipClaim, broker_id: int) -> PartitionState:
    return PartitionState(
        leader=broker_id,
        leader_epoch=claim.after_epoch + 1,
        in_sync=[broker_id],
        end=claim.end,
        replicas={broker_id: claim.log_id} if claim.log_id else {},
    )


def _led(
    claim: LeadershipClaim,
    now: PartitionState,
    broker_id: int,
    members: list[int],
    *,
    end: int | None,
) -> PartitionState:
    replicas = {each: now.replicas[each] for each in members if each in now.replicas}
    replicas.pop(broker_id, None)
    if claim.log_id:
        replicas[broker_id] = claim.log_id
    return PartitionState(
        leader=broker_id,
        leader_epoch=max(claim.after_epoch, now.leader_epoch) + 1,
        in_sync=members,
        end=end,
        replicas=replicas,
        given_up=_given_up(now),
        committed=_sooner(now.committed, claim.end),
        handed_over=now.handed_over,
    )


def _other_log(
    claim: LeadershipClaim, now: PartitionState, broker_id: int
) -> LogMissingError | None:
    """Says that the claimed log never was the one that is in sync alone, if that is known and that
    was not given up."""
    where, has = claim.topic_partition, now.replicas.get(broker_id, "")
    if not (claim.log_id and has) or now.go_on_at is not None:
        return None
    if may_be_same_log(claim.log_id, has):
        return None
    return LogMissingError(
        f"Broker {broker_id} cannot lead {where}: its log has the id {claim.log_id}, and never was "
        f"the one with the id {has}, which led last. Put the directory of that log in its place "
        "and restart the broker; or, if that is lost, give it up: logbus topics give-up "
        f"{where.topic} --partition {where.partition}."
    )


def _flaw(
    claim: LeadershipClaim, now: PartitionState, broker_id: int, members: Sequence[int]
) -> NotLeaderError | LogMissingError | None:
    """Says why the claimed log may lack what was acknowledged, if it may. What the only member
    lacks, nobody has: so that leads, unless its log never was the one in sync."""
    where, has = claim.topic_partition, now.replicas.get(broker_id, "")
    if broker_id not in members:
        return NotLeaderError(
            f"Broker {broker_id} cannot lead {where}: it is not in sync. Brokers "
            f"{listed(members) or '(none)'} are."
        )
    if len(members) == 1:
        return _other_log(claim, now, broker_id)
    if not claim.log_id or claim.log_id != has:
        return NotLeaderError(
            f"Broker {broker_id} cannot lead {where}: its log has the id "
            f"{claim.log_id or '(none)'}, and the one that is in sync has the id "
            f"{has or '(none)'}. Brokers {listed(now.in_sync)} are in sync."
        )
    if (claim.end or 0) < (now.committed or 0):
        return NotLeaderError(
            f"Broker {broker_id} cannot lead {where}: its log ends at {claim.end or 0}, and "
            f"records up to {now.committed} were acknowledged. Brokers {listed(now.in_sync)} are "
            "in sync."
        )
    return None


def _without_claimant(
    claim: LeadershipClaim, now: PartitionState, broker_id: int
) -> PartitionState | None:
    """Returns the state without a member that has told that its log is not fit to lead; None where
    it stays as it is, also for one that does not know the id of its log just now."""
    if broker_id not in now.in_sync or not claim.log_id:
        return None
    return without_member(now, broker_id)


def _is_led_by_another(
    claim: LeadershipClaim, now: PartitionState, broker_id: int
) -> NotLeaderError:
    return NotLeaderError(
        f"Broker {broker_id} is not to lead {claim.topic_partition}: broker {now.leader} leads it "
        f"in epoch {now.leader_epoch}."
    )


def _given_up(state: PartitionState) -> int | None:
    """Returns the last leader epoch after which the log was given up, as of the next one."""
    return state.given_up if state.go_on_at is None else state.leader_epoch


def _later(end: int | None, other: int | None) -> int | None:
    return max((each for each in (end, other) if each is not None), default=None)


def _sooner(committed: int | None, end: int | None) -> int | None:
    """Returns what was acknowledged and is there: a log that was in sync alone may have lost some
    of it."""
    return committed if committed is None or end is None else min(committed, end)
