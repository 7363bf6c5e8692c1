"""Plans of moves between brokers: draining one, and leveling all. Pure.

A partition that is on its way to another broker counts as being there already, so a plan that is
made while moves are under way does not undo or repeat them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from spark_logbus.client.admin.levels import BrokerLoad, Levels, distinct_racks
from spark_logbus.errors import BrokerUnavailableError, InvalidRequestError, UnknownTopicError
from spark_logbus.model import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPartition:
    """A partition and the brokers that have its ``replicas``, the preferred leader first, with
    those that it is on its way ``to``, if it is. ``size_bytes`` is of one replica, None while its
    leader does not serve it."""

    topic_partition: TopicPartition
    replicas: tuple[int, ...]
    to: tuple[int, ...] | None = None
    size_bytes: int | None = None

    @property
    def counts_at(self) -> tuple[int, ...]:
        return self.replicas if self.to is None else self.to


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """All partitions, and the brokers: those that run, of these the ones that know moves, and those
    that are being drained, running or not. ``most`` partitions of a topic move at a time."""

    partitions: Sequence[PlacedPartition]
    running: Collection[int]
    moving: Collection[int]
    drained: Collection[int]
    most: int = 1_000
    racks: Mapping[int, str | None] = field(default_factory=dict)

    def takers(self) -> list[int]:
        """Returns the brokers to which partitions can be moved."""
        return sorted({*self.running} & {*self.moving} - {*self.drained})

    def known(self) -> list[int]:
        """Returns the ids of all brokers that run, or have or are to have a partition."""
        of_partitions = {
            broker_id for each in self.partitions for broker_id in (*each.replicas, *each.counts_at)
        }
        return sorted({*self.running, *of_partitions})


class PlannedMove(NamedTuple):
    """``size_bytes`` is what is to be copied now, to all new brokers; the partition may grow
    meanwhile. ``replicas`` has it now, and ``to`` is to have it, the preferred leader first."""

    topic_partition: TopicPartition
    size_bytes: int
    replicas: tuple[int, ...]
    to: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePlan:
    """Moves that nobody has asked for yet, for ``Admin.move_partitions``.

    ``under_way`` are the moves that go on already, of those that the plan would have. ``left`` are
    partitions that should move and cannot, with the reason of each. ``before`` and ``after`` are
    what the running brokers have, and would have; what is on its way counts where it goes.
    """

    moves: tuple[PlannedMove, ...]
    under_way: tuple[PlannedMove, ...] = ()
    left: Mapping[TopicPartition, str] = field(default_factory=dict)
    before: Mapping[int, BrokerLoad] = field(default_factory=dict)
    after: Mapping[int, BrokerLoad] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return sum(move.size_bytes for move in self.moves)

    def targets(self) -> dict[TopicPartition, tuple[int, ...]]:
        """Returns the brokers that are to have each partition."""
        return {move.topic_partition: move.to for move in self.moves}

    def __str__(self) -> str:
        lines = [
            f"{move.topic_partition}: {move.size_bytes:,} bytes from {named(move.replicas)} to "
            f"{named(move.to)}"
            for move in self.moves
        ]
        lines.append(f"{len(self.moves):,} partitions, {self.size_bytes:,} bytes.")
        lines += [f"{where} stays: {why}" for where, why in self.left.items()]
        return "\n".join(lines)


def require_known(placement: Placement, broker_id: int) -> None:
    """InvalidRequestError for a broker that nobody has heard of."""
    known = placement.known()
    if broker_id not in known:
        raise InvalidRequestError(
            f"There is no broker {broker_id}; there are: {', '.join(map(str, known)) or 'none'}."
        )


def plan_move(
    placement: Placement, topic: str, partitions: Iterable[int], to: Sequence[int]
) -> MovePlan:
    """Spreads partitions of a topic, by default all, evenly over brokers; those that are on one of
    them stay there as far as that is even.

    Raises UnknownTopicError for a topic or partition that there is not, and InvalidRequestError or
    BrokerUnavailableError for a broker that cannot take any.
    """
    of_topic = {
        each.topic_partition.partition: each
        for each in placement.partitions
        if each.topic_partition.topic == topic
    }
    wanted = sorted({*partitions} or of_topic)
    unknown = [each for each in wanted if each not in of_topic]
    if not of_topic or unknown:
        raise UnknownTopicError(
            f"The topic {topic!r} has no partition {unknown[0]}; it has {len(of_topic)}."
            if of_topic
            else f"There is no topic {topic!r}; create it, or check its name."
        )
    for broker_id in to:
        _require_takes(placement, broker_id)
    if any(len(of_topic[each].counts_at) > 1 for each in wanted):
        return _plan_lists(placement, [of_topic[each] for each in wanted], to)
    brokers = list(dict.fromkeys(to))
    left: dict[TopicPartition, str] = {}
    counts = dict.fromkeys(brokers, 0)
    share = -(-len(wanted) // len(brokers))
    placed: dict[TopicPartition, tuple[int, ...]] = {}
    unplaced: list[TopicPartition] = []
    under_way: list[PlannedMove] = []
    for number in wanted:
        each = of_topic[number]
        (at,) = each.counts_at
        if at in counts and counts[at] < share:
            counts[at] += 1
            under_way += _under_way(each)
        elif each.to is not None:
            left[each.topic_partition] = _on_its_way(each.to)
        elif each.size_bytes is None:
            left[each.topic_partition] = "Its leader does not serve it now."
        else:
            unplaced.append(each.topic_partition)
    for where in unplaced:
        broker_id = min(brokers, key=lambda each: (counts[each], brokers.index(each)))
        counts[broker_id] += 1
        placed[where] = (broker_id,)
    return _plan(placement, placed, left, under_way)


def _plan_lists(
    placement: Placement, partitions: Sequence[PlacedPartition], to: Sequence[int]
) -> MovePlan:
    """Gives each partition replicas on all of the brokers, with leaders that take turns."""
    if len({*to}) < len(to):
        raise InvalidRequestError(
            f"Replicas are each on a broker of its own; got {', '.join(map(str, to))}."
        )
    left: dict[TopicPartition, str] = {}
    placed: dict[TopicPartition, tuple[int, ...]] = {}
    under_way: list[PlannedMove] = []
    for number, each in enumerate(partitions):
        have = len(each.counts_at)
        if have != len(to):
            topic = each.topic_partition.topic
            raise InvalidRequestError(
                f"{each.topic_partition} has {have} replica{'s' * (have > 1)}, and {len(to)} "
                f"broker{'s are' if len(to) > 1 else ' is'} named; name {have}, or change how many "
                f"it has: logbus topics alter {topic} --replicas {len(to)}."
            )
        first = number % len(to)
        wanted = (*to[first:], *to[:first])
        if each.to is not None and {*each.to} == {*wanted}:
            under_way += _under_way(each)
        elif each.to is not None:
            left[each.topic_partition] = _on_its_way(each.to)
        elif each.size_bytes is None:
            left[each.topic_partition] = _NOT_SERVED
        else:
            placed[each.topic_partition] = wanted
    return _plan(placement, placed, left, under_way)


_NOT_SERVED: Final = "Its leader does not serve it now."


def named(brokers: Sequence[int]) -> str:
    """Returns brokers in words, such as ``brokers 1, 2``."""
    return f"broker{'s' * (len(brokers) > 1)} {', '.join(map(str, brokers))}"


def _on_its_way(to: Sequence[int]) -> str:
    return f"It is on its way to {named(to)}; cancel that move."


def _under_way(part: PlacedPartition) -> list[PlannedMove]:
    if part.to is None:
        return []
    size_bytes = _copied_bytes(part, part.to)
    return [PlannedMove(part.topic_partition, size_bytes, part.replicas, part.to)]


def _copied_bytes(part: PlacedPartition, to: Sequence[int]) -> int:
    return (part.size_bytes or 0) * len({*to} - {*part.replicas})


def _require_takes(placement: Placement, broker_id: int) -> None:
    require_known(placement, broker_id)
    if broker_id not in placement.running:
        raise BrokerUnavailableError(
            f"Broker {broker_id} is not running, so no partition can be moved to it."
        )
    if broker_id not in placement.moving:
        raise InvalidRequestError(
            f"Broker {broker_id} runs a release that knows no moves of partitions; upgrade it "
            "first."
        )
    if broker_id in placement.drained:
        raise InvalidRequestError(
            f"Broker {broker_id} is being drained, so no partition is moved to it; end that first: "
            f"logbus cluster drain {broker_id} --undo."
        )


def plan_drain(placement: Placement, broker_id: int) -> MovePlan:
    """Gives everything that a broker has to the others: large partitions by bytes, small ones by
    the number of partitions.

    Raises InvalidRequestError for a broker that there is not, or that runs a release without moves,
    and where no other one can take anything; BrokerUnavailableError for one that does not run.
    """
    require_known(placement, broker_id)
    here = [each for each in placement.partitions if broker_id in each.replicas]
    wanted = [each for each in here if each.to is None]
    takers = [each for each in placement.takers() if each != broker_id]
    runs = broker_id in placement.running
    sole = [each for each in wanted if len(each.replicas) == 1]
    if sole and not runs and len(sole) == len(wanted):
        raise BrokerUnavailableError(
            f"Broker {broker_id} is not running, so nobody can copy the {len(sole):,} partitions "
            "that it has. Start it first; where its disk is lost, start it with a backup or an "
            "empty directory (docs/operations.md, A broker is gone for good)."
        )
    if sole and runs and broker_id not in placement.moving:
        raise InvalidRequestError(
            f"Broker {broker_id} runs a release that knows no moves of partitions; upgrade it "
            "first."
        )
    if wanted and not takers:
        raise InvalidRequestError(_nobody_takes(placement, broker_id))
    left = {
        each.topic_partition: _on_its_way(each.to)
        for each in placement.partitions
        if each.to is not None and broker_id in each.to
    }
    loads = _loads(placement)
    level = Levels(takers, loads)
    small = level.size_bytes() / max(1, len(takers)) / 1_000
    placed: dict[TopicPartition, tuple[int, ...]] = {}
    for each in sorted(wanted, key=lambda part: (-(part.size_bytes or 0), part.topic_partition)):
        able = _in_most_racks(placement, takers, each, broker_id)
        if each.size_bytes is None:
            left[each.topic_partition] = _NOT_SERVED
            continue
        to = level.emptiest(able) if each.size_bytes > small else level.least_led(able)
        level.add(to, each.size_bytes)
        placed[each.topic_partition] = tuple(
            to if replica == broker_id else replica for replica in each.replicas
        )
    return _plan(placement, placed, left, [move for each in here for move in _under_way(each)])


def _in_most_racks(
    placement: Placement, takers: Sequence[int], part: PlacedPartition, leaves: int
) -> list[int]:
    """Returns the brokers that may have a replica in the place of another: in another rack than the
    rest while there is one. InvalidRequestError if there is none."""
    rest = [each for each in part.replicas if each != leaves]
    able = [each for each in takers if each not in rest]
    if not able:
        raise InvalidRequestError(
            f"{part.topic_partition} has {len(part.replicas)} replicas, and none of the brokers "
            f"that take partitions ({', '.join(map(str, takers))}) is without one, so none can "
            f"have that of broker {leaves}. Start another broker first, or: logbus topics alter "
            f"{part.topic_partition.topic} --replicas {len(rest)} --execute."
        )
    racks = {each: distinct_racks([*rest, each], placement.racks) for each in able}
    return [each for each in able if racks[each] == max(racks.values())]


def _nobody_takes(placement: Placement, broker_id: int) -> str:
    why = []
    for other in sorted({*placement.running} - {broker_id}):
        drained = other in placement.drained
        of = "is being drained" if drained else "runs a release that knows no moves"
        why.append(f"broker {other} {of}")
    reasons = "; ".join(why) or "no other broker runs"
    return (
        f"Nobody can take what broker {broker_id} has: {reasons}. Start another broker first, or "
        "end a drain (logbus cluster drain ID --undo)."
    )


def plan_rebalance(placement: Placement) -> MovePlan:
    """Levels the bytes and then the numbers of partitions of the brokers that take partitions, by
    few and small moves. What is within 10 % of the mean is left alone."""
    takers = placement.takers()
    level = Levels(takers, _loads(placement), placement.racks)
    for each in placement.partitions:
        if each.to is None and each.size_bytes is not None:
            level.may_move(each.topic_partition, each.size_bytes, each.replicas)
    while (step := level.step_to_level_bytes() or level.step_to_level_partitions()) is not None:
        level.move(*step)
    under_way = [move for each in placement.partitions for move in _under_way(each)]
    placed = {**level.placed, **_leveled_leaders(placement, level.placed)}
    return _plan(placement, placed, {}, under_way)


def _leveled_leaders(
    placement: Placement, placed: Mapping[TopicPartition, tuple[int, ...]]
) -> dict[TopicPartition, tuple[int, ...]]:
    """Makes others of the replicas preferred leaders, until no broker is that of two partitions
    more than one that could take one of them."""
    lists = {
        each.topic_partition: placed.get(each.topic_partition, each.counts_at)
        for each in placement.partitions
    }
    leads = Counter(replicas[0] for replicas in lists.values())
    free = sorted(
        each.topic_partition
        for each in placement.partitions
        if each.to is None and each.size_bytes is not None and len(each.replicas) > 1
    )
    takers, changed = {*placement.takers()}, dict[TopicPartition, tuple[int, ...]]()
    again = True
    while again:
        again = False
        for where in free:
            first, *others = lists[where]
            able = [each for each in others if each in takers]
            least = min(able, key=lambda each: (leads[each], each), default=first)
            if leads[first] - leads[least] >= 2:
                rest = [each for each in lists[where] if each != least]
                lists[where] = changed[where] = (least, *rest)
                leads[first] -= 1
                leads[least] += 1
                again = True
    return changed


def plan_replicas(placement: Placement, topic: str, count: int) -> MovePlan:
    """Gives each partition of a topic so many replicas: more on the brokers that have least, fewer
    where most are full, in as many racks as can be. What has so many stays.

    Raises UnknownTopicError, and InvalidRequestError where there are too few brokers.
    """
    parts = [each for each in placement.partitions if each.topic_partition.topic == topic]
    if not parts:
        raise UnknownTopicError(f"There is no topic {topic!r}; create it, or check its name.")
    takers = placement.takers()
    able = {*takers}.union(*(each.replicas for each in parts))
    if not 1 <= count <= max(1, len(able)):
        raise InvalidRequestError(
            f"The partitions of {topic} cannot have {count} replicas: each is on a broker of its "
            f"own, and {len(able)} can have one ({', '.join(map(str, sorted(able)))})."
        )
    level = Levels(able, {each: BrokerLoad(0, 0) for each in able} | _loads(placement))
    left: dict[TopicPartition, str] = {}
    placed: dict[TopicPartition, tuple[int, ...]] = {}
    under_way: list[PlannedMove] = []
    for each in sorted(parts, key=lambda part: part.topic_partition):
        where = each.topic_partition
        if each.to is not None:
            if len(each.to) == count:
                under_way += _under_way(each)
            else:
                left[where] = _on_its_way(each.to)
        elif each.size_bytes is None:
            left[where] = _NOT_SERVED
        else:
            placed[where] = _with_replicas(placement, level, each, count)
    return _plan(placement, placed, left, under_way)


def _with_replicas(
    placement: Placement, level: Levels, part: PlacedPartition, count: int
) -> tuple[int, ...]:
    chosen = [*part.replicas]
    size_bytes = part.size_bytes or 0
    while len(chosen) < count:
        able = [each for each in placement.takers() if each not in chosen]
        if not able:
            raise InvalidRequestError(
                f"{part.topic_partition} cannot have {count} replicas: only {named(chosen)} run "
                "and take partitions. Start another broker first."
            )
        racks = {each: distinct_racks([*chosen, each], placement.racks) for each in able}
        best = [each for each in able if racks[each] == max(racks.values())]
        chosen.append(level.least_led(best) if not size_bytes else level.emptiest(best))
        level.add(chosen[-1], size_bytes)
    while len(chosen) > count:
        # The preferred leader stays: to take its replica costs a change of the lead.
        out = max(
            chosen[1:],
            key=lambda each: (
                each not in placement.running,
                each in placement.drained,
                distinct_racks([one for one in chosen if one != each], placement.racks),
                level.load(each),
            ),
        )
        chosen.remove(out)
        level.add(out, -size_bytes, count=-1)
    return tuple(chosen)


def _loads(placement: Placement) -> dict[int, BrokerLoad]:
    counts: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    for each in placement.partitions:
        for broker_id in each.counts_at:
            counts[broker_id] += 1
            sizes[broker_id] += each.size_bytes or 0
    return {
        broker_id: BrokerLoad(counts[broker_id], sizes[broker_id])
        for broker_id in sorted(placement.running)
    }


def _plan(
    placement: Placement,
    placed: Mapping[TopicPartition, tuple[int, ...]],
    left: Mapping[TopicPartition, str],
    under_way: Iterable[PlannedMove] = (),
) -> MovePlan:
    moves, too_many = [], {}
    of_topic = Counter(
        each.topic_partition.topic for each in placement.partitions if each.to is not None
    )
    before = _loads(placement)
    counts = {broker_id: load.partitions for broker_id, load in before.items()}
    sizes = {broker_id: load.size_bytes for broker_id, load in before.items()}
    for each in sorted(placement.partitions, key=lambda part: part.topic_partition):
        where = each.topic_partition
        to = placed.get(where, each.replicas)
        if to == each.replicas:
            continue
        if of_topic[where.topic] >= placement.most:
            too_many[where] = (
                f"At most {placement.most:,} partitions of a topic move at a time; do the same "
                "again when those have arrived."
            )
            continue
        of_topic[where.topic] += 1
        moves.append(PlannedMove(where, _copied_bytes(each, to), each.replicas, to))
        for brokers, sign in ((each.replicas, -1), (to, 1)):
            for broker_id in brokers:
                if broker_id in before:
                    counts[broker_id] += sign
                    sizes[broker_id] += sign * (each.size_bytes or 0)
    after = {broker_id: BrokerLoad(counts[broker_id], sizes[broker_id]) for broker_id in before}
    return MovePlan(
        moves=tuple(moves),
        under_way=tuple(sorted(under_way)),
        left=dict(sorted({**left, **too_many}.items())),
        before=before,
        after=after,
    )
