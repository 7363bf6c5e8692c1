"""Leads and follows the partitions that are assigned to this broker, and lets go of the others."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from queue import SimpleQueue

from spark_logbus.broker.decided_shares import decided_shares
from spark_logbus.broker.metadata_cache import TopicsImage
from spark_logbus.broker.replica.assignments import Assigned, Assignments, WantedReplica
from spark_logbus.broker.replica.elections import Elections
from spark_logbus.broker.replica.following import Following
from spark_logbus.broker.replica.known_states import KnownStates, ReadStates
from spark_logbus.broker.replica.leadership import Leadership, LeadListener
from spark_logbus.broker.replica.leaving import Leaving
from spark_logbus.broker.replica.old_logs import OldLogs
from spark_logbus.broker.replica.removal import TopicRemoval
from spark_logbus.broker.replica.states import (
    LeaderPartition,
    ReplicaEvent,
    Replicas,
    ReplicaState,
)
from spark_logbus.clock import Clock
from spark_logbus.coordination.cluster.partition_states import MAX_CLAIMS, PartitionStates
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.coordination.writes.writers import WriterRegistry
from spark_logbus.errors import CoordinationError, NotLeaderError, StorageError
from spark_logbus.log import LogDirectory
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Backoff
from spark_logbus.threads import Periodic
from spark_logbus.zookeeper import CorruptNodeError

logger = logging.getLogger(__name__)

_RETRY = Backoff(first_ms=1_000, max_ms=30_000)
_SHOWN = 10  # partitions that one line of the log names
_MAY_FOLLOW = (
    ReplicaState.ABSENT, ReplicaState.FOLLOWING, ReplicaState.HELD, ReplicaState.REMOVING,
)  # fmt: skip
# Between looks at refused partitions: whoever gives one up waits for that.
_REFUSED_RETRY_S = 2.0
_COPY_RETRY_S = 1.0  # to delete a copy that takes room, when the leader has noted its end
_REFUSED_LOOK_S = 0.002  # to look at 10,000 of them takes ZooKeeper about a second


class ReplicaManager:
    """Applies each image of the topics on a thread of its own; lookups are lock-free. Thread-safe.

    A partition is served as soon as its leadership stands in ZooKeeper, and goes on being served
    while ZooKeeper is away. One whose log is not there, though it was led before, or ends before
    what ZooKeeper knows, is refused until it is given up (see ``PartitionStates.give_up``). What is
    gone from ZooKeeper is removed or kept (see ``removal``).

    A partition that moves here is followed until ZooKeeper has it assigned here, then it is led;
    one that has moved away is left to the other broker (see ``following``, ``leaving``). One with
    several replicas is led or followed as its state says; where its leader is gone, this broker
    may be elected (see ``elections``). ZooKeeper is asked for states when it has given notice of
    their changes.

    A broker that lost its id resigns: it leads nothing, applies nothing and so deletes nothing
    until it leads again, then in new leader epochs.

    ``partition_changed`` is called when a partition has new records, or is led here no longer.
    ``end_promises`` has what a broker has prepared of atomic writes prepared anew; it raises
    CoordinationError.
    """

    def __init__(
        self,
        broker_id: int,
        *,
        logs: LogDirectory,
        states: PartitionStates,
        writers: WriterRegistry,
        replicas: Replicas,
        following: Following,
        old_logs: OldLogs,
        leads: LeadListener,
        end_promises: Callable[[int], None],
        clock: Clock,
        partition_changed: Callable[[TopicPartition], None],
    ) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._states = states
        self._writers = writers
        self._notify = partition_changed
        self._replicas = replicas
        self._following = following
        self._old_logs = old_logs
        self._end_promises = end_promises
        self._assignments = Assignments(broker_id)
        self._known = KnownStates(self._assignments, states=states, replicas=replicas)
        self._elections = Elections(clock)
        #: Counts and times of elections.
        self.elections = self._elections.stats
        self._live: frozenset[int] = frozenset()
        # Led, and assigned here by that; the news of it is under way. With the times of the moves.
        self._elected: dict[TopicPartition, int] = {}
        self._removal = TopicRemoval(logs, self._replicas)
        self._leadership = Leadership(
            broker_id,
            logs=logs,
            states=states,
            replicas=replicas,
            leads=leads,
            partition_changed=self._log_changed,
        )
        self._leaving = Leaving(
            self._assignments,
            logs=logs,
            replicas=replicas,
            following=following,
            old_logs=old_logs,
            clock=clock,
            partition_changed=partition_changed,
        )
        self._first = SimpleQueue[Callable[[], None]]()
        self._newest: TopicsImage | None = None
        self._is_due = False  # the newest image is to be applied, perhaps again
        self._applied = self._configured = TopicsImage({}, session_id=0)
        self._tries = 0  # to apply the newest image
        self._logged_held: list[TopicPartition] = []
        self.thread = Periodic(
            "replica-manager",
            self._apply_newest,
            pause_s=math.inf,
            failure="The partitions could not be brought in line with ZooKeeper.",
        )

    def update(self, image: TopicsImage) -> None:
        """Brings the partitions in line with ``image``, soon and on another thread."""
        self._newest = image
        self._apply_soon()

    def states_changed(self, topics: Collection[str]) -> None:
        """Leads and follows, soon, what the states of these topics' partitions say."""
        image = self._newest
        replicated = [
            name
            for name in topics
            if image is None
            or (record := image.topics.get(name)) is None
            or self._assignments.is_replicated_here(record)
        ]
        if replicated:
            self._known.changed(replicated)
            self._apply_soon()

    def brokers_changed(self, live: Collection[int]) -> None:
        """Has leaders elected, soon, in the place of those that do not live."""
        self._live = frozenset(live)
        self._apply_soon()

    def _log_changed(self, topic_partition: TopicPartition) -> None:
        """Passes on that a partition has new records, or has its log looked at, which may have gone
        offline. It does not block."""
        self._notify(topic_partition)
        led = self.find(topic_partition)
        if led is not None and isinstance(led.log.offline, StorageError):
            self._apply_soon()

    def do_first(self, work: Callable[[], None]) -> None:
        """Has ``work``, which raises nothing, called soon on the thread that leads and follows,
        before that looks at what is to be led."""
        self._first.put(work)
        self._apply_soon()

    def known_state(self, topic_partition: TopicPartition, topic_id: str) -> PartitionState | None:
        """Returns the state of a partition with several replicas, one of them here, as it was last
        read."""
        return self._known.get(topic_partition, topic_id)

    def _apply_soon(self) -> None:
        self._is_due = True
        self.thread.wake()

    def resign(self) -> None:
        """Leads nothing from now on: another broker has the id."""
        led = self._replicas.resign()
        self.thread.wake()
        for topic_partition in led:
            self._notify(topic_partition)

    def lead_again(self) -> None:
        """Takes the partitions in new leader epochs: the id is this broker's again."""
        self._replicas.begin_term()
        self._known.forget()
        self._apply_soon()

    def check_epochs(self) -> None:
        """Leads those partitions anew that another broker has led since, which had the id for a
        while and is gone. Raises CoordinationError."""
        if self._leadership.check_epochs():
            self._apply_soon()

    def let_go(
        self, topic_partition: TopicPartition, led: LeaderPartition, *, follows: bool = False
    ) -> None:
        """Leaves a partition, if it is still led as ``led``, to the broker that has its lead, and
        which this one perhaps follows."""
        if self._leadership.let_go(topic_partition, led, follows=follows):
            self._notify(topic_partition)

    # -- lookups --------------------------------------------------------------------------

    def leader_of(self, topic_partition: TopicPartition) -> LeaderPartition:
        """Returns the log and epoch of a partition that is led here.

        Raises NotLeaderError, or the reason why this broker does not lead a partition of its own:
        LogMissingError, PartitionOfflineError.
        """
        led = self._replicas.leader(topic_partition)
        if led is None:
            error = self._replicas.get(topic_partition).error
            if error is not None:
                raise error.again()
            raise NotLeaderError(
                f"Broker {self._broker_id} does not lead {topic_partition}; "
                "refresh the metadata and ask its leader."
            )
        return led

    def find(self, topic_partition: TopicPartition) -> LeaderPartition | None:
        return self._replicas.leader(topic_partition)

    def led(self) -> dict[TopicPartition, LeaderPartition]:
        """Returns all that are led here, as of now."""
        return self._replicas.leading()

    def refused(self) -> dict[TopicPartition, StorageError]:
        """Returns the partitions that would be led here if their logs were whole, with the error of
        each."""
        return {
            topic_partition: replica.error
            for topic_partition, replica in self._replicas.in_state(ReplicaState.REFUSED).items()
            if replica.error is not None
        }

    # -- applying images ------------------------------------------------------------------

    def _apply_newest(self) -> float:
        """Applies the newest image; returns the seconds until that is to be tried again."""
        if self._is_due:
            self._is_due = False  # before the image is taken, which may be followed by another
            self._tries = 0
        image, term = self._newest, self._replicas.term
        if term is None:
            self._hold_all()
        if term is None or image is None:
            return math.inf
        self._tries += 1
        while not self._first.empty():
            self._first.get()()
        try:
            if self._apply(image, term):
                return self._elections.pause_s()
        except Exception:
            logger.exception("The partitions could not be brought in line with ZooKeeper.")
        return self._pause_s()

    def _pause_s(self) -> float:
        pause_s = min(_RETRY.pause_s(self._tries), self._elections.pause_s())
        refused = len(self.refused())
        if self._leaving.waits:
            pause_s = min(pause_s, _COPY_RETRY_S)
        if not refused:
            return pause_s
        return min(pause_s, _REFUSED_RETRY_S + refused * _REFUSED_LOOK_S)

    def _apply(self, image: TopicsImage, term: object) -> bool:
        """Brings the logs in line with ``image``; returns False when something is to be tried
        again."""
        for record in image.removed_since(self._applied):
            self._remove(record, image)
        self._applied = image
        moving = self._assignments.moving_here(image.topics.values())
        done = self._removal.remove_deleted(image.topics)
        try:
            states = self._known.read(image.topics.values())
            self._step_down()
            if self._leave_offline(image):
                # What was read before says that these are led here: they are not taken again.
                states = {**states, **self._known.read(image.topics.values())}
            if self._take(image, states, term, all_led=image is not self._configured):
                self._configured = image
            else:
                done = False
            self._elect(image, term)
            done = self._leaving.leave(image, moving, self._elected_in(moving)) and done
        except CoordinationError as error:
            logger.warning("Not all partitions can be led yet, trying again: %s", error)
            return False
        followed = self._followed(image)
        if self._replicas.term is term:
            targets = {
                topic_partition: each
                for topic_partition, each in moving.items()
                if self._replicas.get(topic_partition).state in _MAY_FOLLOW
            }
            self._following.want({**followed, **targets})
        self._log_held({*moving, *followed})
        return done

    def _remove(self, record: TopicRecord, image: TopicsImage) -> None:
        """Removes or keeps what is here of a topic that is gone."""
        assigned = {*self._assignments.assigned_here(record)}
        gone = [
            topic_partition
            for partition in record.partitions
            if (topic_partition := TopicPartition(record.name, partition)) in assigned
            or self._replicas.get(topic_partition).state is not ReplicaState.ABSENT
        ]
        for topic_partition in gone:
            self._following.release(topic_partition)
        if self._removal.remove_or_keep(record, gone, before=self._applied, now=image):
            self._old_logs.topic_deleted(record.topic_id)
        for topic_partition in gone:
            self._notify(topic_partition)

    def _step_down(self) -> None:
        """Leads no more what another broker leads."""
        for topic_partition, led in self._replicas.leading().items():
            state = self._known.get(topic_partition, led.log.topic_id)
            if (
                state is not None
                and state.leader != self._broker_id
                and state.leader_epoch > led.leader_epoch
            ):
                self._leadership.step_down(topic_partition, led, state)

    def _leave_offline(self, image: TopicsImage) -> bool:
        """Leaves to others what is led with logs that take nothing any more; returns True if there
        was some. Raises CoordinationError."""
        offline = {
            topic_partition: led
            for topic_partition, led in self._replicas.leading().items()
            if isinstance(led.log.offline, StorageError)
            and (record := image.topics.get(topic_partition.topic)) is not None
            and record.topic_id == led.log.topic_id
            and (state := self._known.get(topic_partition, led.log.topic_id)) is not None
            and not self._leadership.others_in_sync(
                Assigned(topic_partition, record, state)
            ).isdisjoint(self._live)
        }
        if offline:
            self._leadership.leave_offline(offline, self._live)
        return bool(offline)

    def _take(self, image: TopicsImage, states: ReadStates, term: object, *, all_led: bool) -> bool:
        """Leads what is to be led here; ``all_led``: what is led already is to be configured as its
        topic says. Raises CoordinationError."""
        done = True
        assigned = []
        for record in image.topics.values():
            for topic_partition in self._assignments.assigned_here(record):
                if self._is_led(topic_partition, record):
                    if all_led:
                        assigned.append(Assigned(topic_partition, record, None))
                elif topic_partition in states:
                    each = Assigned(topic_partition, record, states[topic_partition])
                    if each.is_replicated and isinstance(each.state, CorruptNodeError):
                        done = False  # it is followed, if it was
                    elif self._assignments.leads(each, self._live):
                        self._following.release(topic_partition)
                        assigned.append(each)
        decided = (
            decided_shares(self._writers.pending().states)
            if any(not self._is_led(each.topic_partition, each.record) for each in assigned)
            else {}
        )
        for start in range(0, len(assigned), MAX_CLAIMS):
            if self.thread.stopping.is_set() or self._replicas.term is not term:
                return False
            some = assigned[start : start + MAX_CLAIMS]
            done = self._leadership.take(some, decided, term, self._live) and done
        return done

    def _is_led(self, topic_partition: TopicPartition, record: TopicRecord) -> bool:
        led = self.find(topic_partition)
        return led is not None and led.log.topic_id == record.topic_id

    def _elect(self, image: TopicsImage, term: object) -> None:
        """Tries to be elected leader of what has lost its leader. Raises CoordinationError."""
        ranks: dict[TopicPartition, int] = {}
        candidates: dict[TopicPartition, Assigned] = {}
        for record, topic_partition, state in self._known_of(
            image, self._assignments.electable_here
        ):
            if self._is_led(topic_partition, record):
                continue  # elected just now; the news of it is under way
            each = Assigned(topic_partition, record, state)
            rank = self._assignments.rank(each, state, self._live)
            if rank is not None:
                ranks[topic_partition], candidates[topic_partition] = rank, each
        due = [candidates[each] for each in self._elections.due(ranks)]
        if not due:
            return
        for leader in {each.state.leader for each in due if isinstance(each.state, PartitionState)}:
            self._end_promises(leader)
        for each in due:
            self._following.release(each.topic_partition)
        decided = decided_shares(self._writers.pending().states)
        for some in self._together(due):
            if self.thread.stopping.is_set() or self._replicas.term is not term:
                return
            self._leadership.elect(some, decided, term, self._live)
            for each in some:
                where = each.topic_partition
                if not self._is_led(where, each.record):
                    self._elections.stats.lost.add()
                    continue
                self._elections.won(where)
                if self._broker_id not in each.brokers:
                    self._elected[where] = each.record.moves[where.partition].since_us

    def _together(self, due: list[Assigned]) -> Iterator[list[Assigned]]:
        """Yields those for which to be elected in one transaction. One that moves here is alone:
        its topic's node is written too, which may be large."""
        assigned = [each for each in due if self._broker_id in each.brokers]
        for start in range(0, len(assigned), MAX_CLAIMS):
            yield assigned[start : start + MAX_CLAIMS]
        yield from ([each] for each in due if self._broker_id not in each.brokers)

    def _elected_in(
        self, moving: Mapping[TopicPartition, WantedReplica]
    ) -> Collection[TopicPartition]:
        """Returns what this broker was elected to lead and is not known yet to be assigned to it,
        as the moves are those that stood then."""
        for where, since_us in list(self._elected.items()):
            now = moving.get(where)
            if now is None or now.since_us != since_us:
                del self._elected[where]
        return self._elected.keys()

    def _followed(self, image: TopicsImage) -> dict[TopicPartition, WantedReplica]:
        """Returns what is assigned here and led by others."""
        return {
            topic_partition: WantedReplica(topic_partition, record, state=state)
            for record, topic_partition, state in self._known_of(
                image, self._assignments.assigned_here
            )
            if state.leader != self._broker_id and not self._is_led(topic_partition, record)
        }

    def _known_of(
        self, image: TopicsImage, which: Callable[[TopicRecord], Iterable[TopicPartition]]
    ) -> Iterator[tuple[TopicRecord, TopicPartition, PartitionState]]:
        """Yields those partitions that have several replicas, with their states as they were last
        read; but what was never led."""
        for record in image.topics.values():
            for topic_partition in which(record):
                state = self._known.get(topic_partition, record.topic_id)
                if state is not None:
                    yield record, topic_partition, state

    def _hold_all(self) -> None:
        self._following.want({})  # first: nothing more begins to be followed
        for topic_partition in self._following.followed():
            self._following.release(topic_partition)
        for topic_partition in self._replicas.in_state(ReplicaState.FOLLOWING):
            self._replicas.change(topic_partition, ReplicaEvent.RESIGN)
        for each in self._logs.logs():
            self._logs.pause_deletion(each.topic_partition, topic_id=each.topic_id)

    def _log_held(self, moving: Collection[TopicPartition]) -> None:
        refused = self.refused()
        held = sorted(
            where
            for each in self._logs.logs()
            if each.deletion_paused
            and (where := each.topic_partition) not in refused
            and where not in moving
            and self._replicas.get(where).state is not ReplicaState.MOVED
        )
        if held and held != self._logged_held:
            logger.warning(
                "ZooKeeper has no topic, or none with a configuration that can be used, for %d of "
                "the logs here (%s%s): all their records are kept. If ZooKeeper has lost its data, "
                "restore that; if the topics were deleted while this broker was away, remove the "
                "directories while it is stopped.",
                len(held), ", ".join(map(str, held[:_SHOWN])), ", ..." * (len(held) > _SHOWN),
            )  # fmt: skip
        self._logged_held = held
