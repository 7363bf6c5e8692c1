"""Has partitions led again by brokers that are not in sync, where their topics allow that.

A topic with ``unclean.leader.election=true`` would rather lose records than wait for the brokers
that have them. So if for some seconds none that is in sync lives, the one of the others with the
most of the log is elected: each asks the rest what they have, and leaves it to the best. One that
does not answer is passed over after a while.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from spark_logbus.broker.replica.manager import ReplicaManager
from spark_logbus.broker.replica.unclean import Candidate, UncleanElections
from spark_logbus.clock import Clock
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.errors import BrokerUnavailableError, ConfigError, LogbusError
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.protocol import (
    Api,
    ReplicaStanding,
    UncleanElectRequest,
    UncleanElectResponse,
)
from spark_logbus.retry import Backoff, Deadline
from spark_logbus.threads import Periodic
from spark_logbus.topic_replication import UNCLEAN_ELECTION, TopicReplication
from spark_logbus.wire.config import ConnectionConfig
from spark_logbus.wire.connect import connect

logger = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 1.0
#: A broker that was restarted, or lost its session for a moment, is back by then.
WAIT_S: Final = 5.0
# Partitions of a topic with which a look is over within seconds.
_AT_A_TIME: Final = 100
_ANSWER_MS: Final = 3_000
_ELECTED_WITHIN_S: Final = 30.0
# After so many looks one that does not answer is passed over.
_TRIES: Final = 3
_AGAIN: Final = Backoff(first_ms=1_000, max_ms=30_000)
_WHY: Final = f"as its topic has {UNCLEAN_ELECTION}=true"

#: Asks a broker what it has of partitions of a topic.
Ask = Callable[[int, UncleanElectRequest], UncleanElectResponse]


class _Wanting(NamedTuple):
    """A partition without a leader, and the state that says so."""

    topic_partition: TopicPartition
    record: TopicRecord
    state: PartitionState


@dataclass
class _Offline:
    """A partition that nobody may lead who lives: since when, and when to try next."""

    since: float
    due_at: float
    tries: int = 0


class UncleanTopics:
    """Looks at partitions that are assigned here, on a thread of its own; the broker starts and
    stops ``thread``.

    ``topics`` gives the topics as this broker knows them, ``live`` the brokers that are registered,
    and ``is_certain`` tells if that is known for certain: ZooKeeper is reached.
    """

    def __init__(
        self,
        broker_id: int,
        *,
        elections: UncleanElections,
        replica_manager: ReplicaManager,
        topics: Callable[[], Mapping[str, TopicRecord]],
        live: Callable[[], Collection[int]],
        is_certain: Callable[[], bool],
        ask: Ask,
        clock: Clock,
    ) -> None:
        self._broker_id = broker_id
        self._elections = elections
        self._replica_manager = replica_manager
        self._topics = topics
        self._live = live
        self._is_certain = is_certain
        self._ask = ask
        self._clock = clock
        self._offline: dict[tuple[TopicPartition, int], _Offline] = {}  # by leader epoch, too
        self.thread = Periodic(
            "unclean-elections",
            self.look,
            pause_s=_LOOK_EVERY_S,
            failure="Partitions whose topics allow unclean elections could not be looked after.",
        )

    def look(self) -> None:
        """Has those led that have been offline for long enough."""
        wanting = list(self._wanting()) if self._is_certain() else []
        now = self._clock.monotonic()
        self._offline = {
            (key := (each.topic_partition, each.state.leader_epoch)): self._offline.get(key)
            or _Offline(now, now + WAIT_S)
            for each in wanting
        }
        due: defaultdict[str, list[_Wanting]] = defaultdict(list)
        for each in wanting:
            if self._of(each).due_at <= now and len(due[each.topic_partition.topic]) < _AT_A_TIME:
                due[each.topic_partition.topic].append(each)
        for some in due.values():
            if some and not self.thread.stopping.is_set():
                try:
                    self._elect(some)
                except LogbusError as error:
                    logger.info("Nobody is elected yet for %s: %s", some[0].record.name, error)

    def _of(self, each: _Wanting) -> _Offline:
        return self._offline[each.topic_partition, each.state.leader_epoch]

    def _wanting(self) -> Iterator[_Wanting]:
        """Yields what this broker may lead, as nobody who is in sync lives."""
        me, live = self._broker_id, {*self._live()}
        for record in self._topics().values():
            if not _allows(record) or me not in live:
                continue
            for partition, assigned in record.partitions.items():
                if me not in assigned or len(assigned) == 1:
                    continue
                where = TopicPartition(record.name, partition)
                state = self._replica_manager.known_state(where, record.topic_id)
                if state is not None and live.isdisjoint(state.in_sync or [state.leader]):
                    yield _Wanting(where, record, state)

    def _elect(self, some: list[_Wanting]) -> None:
        """Has those of one topic led of which this broker has the most. Raises LogbusError."""
        now = self._clock.monotonic()
        for each in some:
            offline = self._of(each)
            offline.tries += 1
            offline.due_at = now + _AGAIN.pause_s(offline.tries)
        record = some[0].record
        partitions = [each.topic_partition.partition for each in some]
        here = self._elections.look(record.name, partitions, record.topic_id)
        others, silent = self._ask_others(record, partitions)
        asked: dict[TopicPartition, Future[PartitionState]] = {}
        for each in some:
            where, candidate = each.topic_partition, here[each.topic_partition.partition]
            if candidate.problem is not None:
                logger.info("Not elected leader of %s: %s", where, candidate.problem)
                continue
            assigned = record.partitions[where.partition]
            if silent & {*assigned} and self._of(each).tries < _TRIES:
                continue
            if self._is_best(candidate, others.get(where.partition, {}), assigned):
                epoch = each.state.leader_epoch
                asked[where] = self._elections.ask(where, record.topic_id, epoch, why=_WHY)
        wait(asked.values(), _ELECTED_WITHIN_S)
        for where, done in asked.items():
            if not done.cancel() and (error := done.exception()) is not None:
                logger.info("Not elected leader of %s: %s", where, error)

    def _ask_others(
        self, record: TopicRecord, partitions: Collection[int]
    ) -> tuple[dict[int, dict[int, ReplicaStanding]], set[int]]:
        """Asks the other brokers that live what they have: by partition and broker; and those that
        did not answer."""
        live = {*self._live()} - {self._broker_id}
        by_broker: defaultdict[int, list[int]] = defaultdict(list)
        for partition in partitions:
            for each in live & {*record.partitions[partition]}:
                by_broker[each].append(partition)
        found: defaultdict[int, dict[int, ReplicaStanding]] = defaultdict(dict)
        silent: set[int] = set()
        for broker_id, asked in by_broker.items():
            request = UncleanElectRequest(record.name, asked, record.topic_id)
            try:
                answer = self._ask(broker_id, request)
            except LogbusError as error:
                logger.info("Broker %d does not say what it has: %s", broker_id, error)
                silent.add(broker_id)
                continue
            for result in answer.results:
                if result.error is None and result.standing is not None:
                    found[result.partition][broker_id] = result.standing
        return found, silent

    def _is_best(
        self,
        candidate: Candidate,
        others: Mapping[int, ReplicaStanding],
        assigned: list[int],
    ) -> bool:
        """Tells if no other has more: of a later epoch, or else more records; or as much, and comes
        before this broker in the assignment."""
        own = candidate.standing
        assert own is not None

        def rank(broker_id: int, standing: ReplicaStanding) -> tuple[int, int, int]:
            return standing.last_epoch, standing.log_end, -assigned.index(broker_id)

        mine = rank(self._broker_id, own)
        return all(
            rank(broker_id, each) < mine
            for broker_id, each in others.items()
            if broker_id in assigned
        )


def _allows(record: TopicRecord) -> bool:
    try:
        return TopicReplication.from_topic_config(record.config).unclean_election
    except ConfigError:  # written by hand, past all checks
        return False


def asking(
    connections: ConnectionConfig, address: Callable[[int], BrokerAddress | None], clock: Clock
) -> Ask:
    """Returns what asks another broker, on a connection of its own."""
    config = replace(connections, connect_timeout_ms=_ANSWER_MS)

    def ask(other: int, request: UncleanElectRequest) -> UncleanElectResponse:
        where = address(other)
        if where is None:
            raise BrokerUnavailableError(f"Broker {other} is not registered in ZooKeeper.")
        deadline = Deadline.after_ms(clock, _ANSWER_MS)
        connection = connect(where, config, deadline)
        try:
            pending = connection.send(Api.ELECT_UNCLEAN, request)
            return pending.result(UncleanElectResponse, deadline)
        finally:
            connection.close()

    return ask
