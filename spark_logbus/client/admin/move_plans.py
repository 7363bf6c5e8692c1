"""Plans of moves between brokers: draining one, and leveling all. Pure.

A partition that is on its way to another broker counts as being there already, so a plan that is
made while moves are under way does not undo or repeat them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from spark_logbus.client.admin.levels import BrokerLoad, Levels
from spark_logbus.errors import BrokerUnavailableError, InvalidRequestError, UnknownTopicError
from spark_logbus.model import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPartition:
    """A partition on the broker ``assigned``, with the broker that it is on its way ``to``, if it
    is. ``size_bytes`` is None while its leader does not serve it."""

    topic_partition: TopicPartition
    assigned: int
    to: int | None = None
    size_bytes: int | None = None

    @property
    def counts_at(self) -> int:
        return self.assigned if self.to is None else self.to


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """All partitions, and the brokers: those that run, of these the ones that know moves, and those
    that are being drained, running or not. ``most`` partitions of a topic move at a time."""

    partitions: Sequence[PlacedPartition]
    running: Collection[int]
    moving: Collection[int]
    drained: Collection[int]
    most: int = 1_000

    def takers(self) -> list[int]:
        """Returns the brokers to which partitions can be moved."""
        return sorted({*self.running} & {*self.moving} - {*self.drained})

    def known(self) -> list[int]:
        """Returns the ids of all brokers that run, or have or are to have a partition."""
        of_partitions = {each.assigned for each in self.partitions}
        return sorted(
            {*self.running, *of_partitions, *(each.counts_at for each in self.partitions)}
        )


class PlannedMove(NamedTuple):
    """``size_bytes`` is what is to be copied now; the partition may grow meanwhile."""

    topic_partition: TopicPartition
    size_bytes: int
    from_broker: int
    to_broker: int


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

    def targets(self) -> dict[TopicPartition, int]:
        """Returns the broker to which each partition is to go."""
        return {move.topic_partition: move.to_broker for move in self.moves}

    def __str__(self) -> str:
        lines = [
            f"{move.topic_partition}: {move.size_bytes:,} bytes from broker {move.from_broker} to "
            f"broker {move.to_broker}"
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
    brokers = list(dict.fromkeys(to))
    for broker_id in brokers:
        _require_takes(placement, broker_id)
    left: dict[TopicPartition, str] = {}
    counts = dict.fromkeys(brokers, 0)
    share = -(-len(wanted) // len(brokers))
    placed: dict[TopicPartition, int] = {}
    unplaced: list[TopicPartition] = []
    under_way: list[PlannedMove] = []
    for number in wanted:
        each = of_topic[number]
        if each.counts_at in counts and counts[each.counts_at] < share:
            counts[each.counts_at] += 1
            under_way += _under_way(each)
        elif each.to is not None:
            left[each.topic_partition] = f"It is on its way to broker {each.to}; cancel that move."
        elif each.size_bytes is None:
            left[each.topic_partition] = "Its leader does not serve it now."
        else:
            unplaced.append(each.topic_partition)
    for where in unplaced:
        broker_id = min(brokers, key=lambda each: (counts[each], brokers.index(each)))
        counts[broker_id] += 1
        placed[where] = broker_id
    return _plan(placement, placed, left, under_way)


def _under_way(part: PlacedPartition) -> list[PlannedMove]:
    if part.to is None:
        return []
    return [PlannedMove(part.topic_partition, part.size_bytes or 0, part.assigned, part.to)]


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
    here = [each for each in placement.partitions if each.assigned == broker_id]
    wanted = [each for each in here if each.to is None]
    takers = [each for each in placement.takers() if each != broker_id]
    if wanted and broker_id not in placement.running:
        raise BrokerUnavailableError(
            f"Broker {broker_id} is not running, so nobody can copy the {len(wanted):,} partitions "
            "that it has. Start it first; where its disk is lost, start it with a backup or an "
            "empty directory (docs/operations.md, A broker is gone for good)."
        )
    if wanted and broker_id not in placement.moving:
        raise InvalidRequestError(
            f"Broker {broker_id} runs a release that knows no moves of partitions; upgrade it "
            "first."
        )
    if wanted and not takers:
        raise InvalidRequestError(_nobody_takes(placement, broker_id))
    left = {
        each.topic_partition: f"It is on its way to broker {broker_id}; cancel that move."
        for each in placement.partitions
        if each.to == broker_id and each.assigned != broker_id
    }
    loads = _loads(placement)
    level = Levels(takers, loads)
    small = level.size_bytes() / max(1, len(takers)) / 1_000
    placed: dict[TopicPartition, int] = {}
    for each in sorted(wanted, key=lambda part: (-(part.size_bytes or 0), part.topic_partition)):
        if each.size_bytes is None:
            left[each.topic_partition] = "Its leader does not serve it now."
            continue
        to = level.emptiest() if each.size_bytes > small else level.least_led()
        level.add(to, each.size_bytes)
        placed[each.topic_partition] = to
    return _plan(placement, placed, left, [move for each in here for move in _under_way(each)])


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
    level = Levels(takers, _loads(placement))
    for each in placement.partitions:
        if each.to is None and each.size_bytes is not None and each.assigned in takers:
            level.may_move(each.assigned, each.size_bytes, each.topic_partition)
    while (step := level.step_to_level_bytes() or level.step_to_level_partitions()) is not None:
        level.move(*step)
    under_way = [move for each in placement.partitions for move in _under_way(each)]
    return _plan(placement, level.placed, {}, under_way)


def _loads(placement: Placement) -> dict[int, BrokerLoad]:
    counts: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    for each in placement.partitions:
        counts[each.counts_at] += 1
        sizes[each.counts_at] += each.size_bytes or 0
    return {
        broker_id: BrokerLoad(counts[broker_id], sizes[broker_id])
        for broker_id in sorted(placement.running)
    }


def _plan(
    placement: Placement,
    placed: Mapping[TopicPartition, int],
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
        to = placed.get(where, each.assigned)
        if to == each.assigned:
            continue
        if of_topic[where.topic] >= placement.most:
            too_many[where] = (
                f"At most {placement.most:,} partitions of a topic move at a time; do the same "
                "again when those have arrived."
            )
            continue
        of_topic[where.topic] += 1
        size = each.size_bytes or 0
        moves.append(PlannedMove(where, size, each.assigned, to))
        for broker_id, sign in ((each.assigned, -1), (to, 1)):
            counts[broker_id] += sign
            sizes[broker_id] += sign * size
    after = {broker_id: BrokerLoad(counts[broker_id], sizes[broker_id]) for broker_id in before}
    return MovePlan(
        moves=tuple(moves),
        under_way=tuple(sorted(under_way)),
        left=dict(sorted({**left, **too_many}.items())),
        before=before,
        after=after,
    )
