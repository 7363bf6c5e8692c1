"""Topics: created, deleted, altered and described, for tools and drivers.

A change is done when every live broker has heard of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spark_logbus.client.admin.describing import described, with_ends
from spark_logbus.client.admin.elections import elect_preferred
from spark_logbus.client.admin.move_plans import (
    MovePlan,
    plan_drain,
    plan_rebalance,
    plan_replicas,
)
from spark_logbus.client.admin.moves import (
    DEFAULT_THROTTLE,
    MoveDescription,
    cancel_moves,
    described_moves,
    move_partitions,
)
from spark_logbus.client.admin.offsets import OffsetQueries
from spark_logbus.client.admin.unclean_elections import UncleanPlan, elect, plan_unclean
from spark_logbus.client.arguments import as_config, as_partition_count, as_replica_count
from spark_logbus.errors import (
    BrokerUnavailableError,
    ConfigError,
    LogbusError,
    RequestTimeoutError,
    TopicExistsError,
    UnknownTopicError,
)
from spark_logbus.model import TopicPartition, check_name
from spark_logbus.offsets.descriptions import TopicDescription
from spark_logbus.protocol import (
    AlterTopicRequest,
    AlterTopicResponse,
    Api,
    CreateTopicRequest,
    CreateTopicResponse,
    DeleteTopicRequest,
    DeleteTopicResponse,
    ListOffsetsPartition,
    MetadataRequest,
    MetadataResponse,
    TopicInfo,
)
from spark_logbus.retry import Backoff, Deadline
from spark_logbus.topic_schemas import SCHEMA_KEYS

if TYPE_CHECKING:
    from spark_logbus.client.admin.cluster_health import ClusterDescription
    from spark_logbus.client.admin.groups import GroupDescription, GroupRewind
    from spark_logbus.client.admin.stored_groups import StoredGroups
    from spark_logbus.client.schemas.admin import SchemaDescription
    from spark_logbus.offsets.give_up import GiveUpPlan
    from spark_logbus.offsets.rewind import Target

_CHANGE_TIMEOUT_MS: Final = 30_000
# Leaders of a new topic come within a second or so, and only those are asked that did not answer.
_LEADERS: Final = Backoff(first_ms=50, max_ms=200)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAlteration:
    """A topic's own configuration and its number of partitions, before and after."""

    config_before: dict[str, str]
    config: dict[str, str]
    partitions_before: int
    partitions: int


class Admin(OffsetQueries):
    """Thread-safe; keeps nothing but the cluster it is given."""

    def __repr__(self) -> str:
        return f"<Admin at {self._cluster.address}>"

    def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        replicas: int = 1,
        config: Mapping[str, str | int] | None = None,
        value_schema: Any = None,
        value_encoding: str | None = None,
        value_subject: str | None = None,
        key_schema: Any = None,
        key_encoding: str | None = None,
        key_subject: str | None = None,
        if_not_exists: bool = False,
        timeout_ms: int = _CHANGE_TIMEOUT_MS,
    ) -> TopicDescription:
        """Create a topic and wait until every broker knows it and every leader answers for it.

        Each partition has ``replicas``, on as many brokers and, while there are enough, racks.
        ``config`` values are text, or whole numbers, as in ``{"retention.ms": 60_000}``.
        Raises TopicExistsError, InvalidNameError, ConfigError, and RequestTimeoutError if the
        leaders are not ready in time, in which case the topic exists all the same.

        With a schema, as text or as a JSON value, that is registered first, under a subject that is
        ``<topic>-value`` or ``<topic>-key`` by default; with an encoding and no schema, the subject
        must have one. Values are ``"columns"`` by default or ``"avro"``, keys ``"avro"``. Raises
        UnsupportedSchemaError for a schema that no columns can have, CoordinationError, and the
        registry's InvalidSchemaError, IncompatibleSchemaError and UnknownSubjectError. Nothing is
        registered for a topic that exists.
        """
        check_name("topic", name)
        deadline = self._cluster.deadline_ms(timeout_ms)
        count, copies = as_partition_count(partitions), as_replica_count(replicas)
        wanted = as_config(config or {})
        of_value = (value_schema, value_encoding, value_subject)
        of_key = (key_schema, key_encoding, key_subject)
        if not wanted.keys().isdisjoint(SCHEMA_KEYS) or any(
            each is not None for each in (*of_value, *of_key)
        ):
            exists = self._id_of(name, deadline) is not None
            if exists and not if_not_exists:
                raise TopicExistsError(
                    f"The topic {name!r} exists already. Choose another name, or delete it first."
                )
            if exists:
                wanted = {key: text for key, text in wanted.items() if key not in SCHEMA_KEYS}
            else:
                # Imported here: Spark tasks use this class and never talk to ZooKeeper.
                from spark_logbus.client.schemas.admin import with_schemas

                wanted = with_schemas(
                    name, wanted, value=of_value, key=of_key, zookeeper=self._cluster.zookeeper
                )
        request = CreateTopicRequest(name, count, wanted, copies)

        def create(deadline: Deadline, silent: list[LogbusError]) -> None:
            made = self._cluster.ask_any(
                Api.CREATE_TOPIC, request, CreateTopicResponse, deadline=deadline, silent=silent
            )
            if made.replicas != copies:
                raise ConfigError(
                    f"The topic {name!r} was created with one replica of each partition instead of "
                    f"{copies}: a broker's release knows no more. Delete it and upgrade all "
                    "brokers first."
                )

        self._change(
            f"Creating topic {name}",
            create,
            done_already=TopicExistsError,
            accept=if_not_exists,
            deadline=deadline,
        )
        self._wait_for_all_brokers(
            name, "created", lambda found: any(info.name == name for info in found), deadline
        )
        return self._wait_for_leaders(name, deadline)

    def _id_of(self, name: str, deadline: Deadline) -> str | None:
        """The id of the topic, None if no broker has heard of one."""
        self._cluster.invalidate(name)
        try:
            known = self._cluster.retrying(
                f"Looking for topic {name}",
                lambda deadline: self._cluster.topic(name, deadline),
                deadline=deadline,
            )
        except UnknownTopicError:
            return None
        return known.topic_id

    def describe_schemas(self, names: Iterable[str]) -> dict[str, list[SchemaDescription]]:
        """The encodings and subjects of topics, with the latest schemas; empty for plain bytes.
        Raises UnknownTopicError, and CoordinationError where ZooKeeper has to be asked."""
        from spark_logbus.client.schemas.admin import describe_schemas

        configs = {
            topic: described.config for topic, described in self.describe(names, ends=False).items()
        }
        return describe_schemas(configs, zookeeper=self._cluster.zookeeper)

    def delete_topic(self, name: str, *, timeout_ms: int = _CHANGE_TIMEOUT_MS) -> None:
        """Delete a topic and wait until no broker shows it any more. UnknownTopicError."""
        check_name("topic", name)
        deadline = self._cluster.deadline_ms(timeout_ms)
        # By its id: a broker that stood still may carry out the request long after another one did,
        # when somebody has created the topic again.
        request = DeleteTopicRequest(name, self._id_of(name, deadline))
        self._change(
            f"Deleting topic {name}",
            lambda deadline, silent: self._cluster.ask_any(
                Api.DELETE_TOPIC, request, DeleteTopicResponse, deadline=deadline, silent=silent
            ),
            done_already=UnknownTopicError,
            deadline=deadline,
        )
        self._wait_for_all_brokers(
            name, "deleted", lambda found: all(info.name != name for info in found), deadline
        )

    def alter_topic(
        self,
        name: str,
        *,
        put: Mapping[str, str | int] | None = None,
        drop: Iterable[str] = (),
        partitions: int | None = None,
        timeout_ms: int = _CHANGE_TIMEOUT_MS,
    ) -> TopicAlteration:
        """Set and unset keys of the topic's configuration, or give it more partitions; wait until
        every broker has heard of it. UnknownTopicError, ConfigError. To drop a key that is not
        set changes nothing.

        More partitions change where keys go: records of one key may then be in two partitions.
        """
        deadline = self._cluster.deadline_ms(timeout_ms)
        config = as_config(put or {})
        count = None if partitions is None else as_partition_count(partitions)
        check_name("topic", name)
        request = AlterTopicRequest(name, config, list(drop), count)
        done = self._cluster.retrying(
            f"Altering topic {name}",
            lambda deadline: self._cluster.ask_any(
                Api.ALTER_TOPIC, request, AlterTopicResponse, deadline=deadline
            ),
            deadline=deadline,
        )

        def altered(found: Sequence[TopicInfo]) -> bool:
            # A later change by others may hide this one: then there is nothing to wait for either.
            return all(
                (info.config != done.config_before or info.config == done.config)
                and len(info.partitions) >= done.partitions
                for info in found
            )

        self._wait_for_all_brokers(name, "altered", altered, deadline)
        if done.partitions > done.partitions_before:
            self._wait_for_leaders(name, deadline)
        return TopicAlteration(
            config_before=done.config_before,
            config=done.config,
            partitions_before=done.partitions_before,
            partitions=done.partitions,
        )

    def _change(
        self,
        action: str,
        attempt: Callable[[Deadline, list[LogbusError]], object],
        *,
        done_already: type[LogbusError],
        accept: bool = False,
        deadline: Deadline,
    ) -> None:
        """``attempt`` until it succeeds. ``done_already`` is success with ``accept``, and after a
        lost reply, also of a broker before the one that says so: what was done may be our own."""
        silent: list[LogbusError] = []

        def guarded(deadline: Deadline) -> None:
            try:
                attempt(deadline, silent)
            except done_already:
                if not (accept or silent):
                    raise
            except LogbusError as error:
                if error.retriable:
                    silent.append(error)
                raise

        self._cluster.retrying(action, guarded, deadline=deadline)

    def hear_all(self, topics: Iterable[str]) -> None:
        """Ask all brokers for the leaders of the topics, of which the newest count from then on."""
        self._cluster.hear_all(topics)

    def topics(self) -> list[TopicDescription]:
        """All topics, by name, without ends."""
        described = self.describe(None, ends=False)
        return [described[name] for name in sorted(described)]

    def describe(
        self, names: Iterable[str] | None = None, *, ends: bool = True
    ) -> dict[str, TopicDescription]:
        """The named topics, or all. UnknownTopicError for a name that no broker knows,
        InvalidNameError for one that no topic can have.

        A partition whose leader does not answer has no ends; the rest is there all the same.
        """
        wanted = None if names is None else [check_name("topic", name) for name in names]

        def attempt(deadline: Deadline) -> list[TopicInfo]:
            if wanted is None:
                return self._cluster.ask_metadata(None, deadline=deadline).topics
            for name in wanted:
                self._cluster.topic(name, deadline)  # the last word on whether it exists
            found = self._cluster.ask_metadata(
                wanted,
                deadline=deadline,
                good=lambda response: {info.name for info in response.topics} >= set(wanted),
            ).topics
            missing = sorted({*wanted} - {info.name for info in found})
            for name in missing:  # deleted since it was cached
                self._cluster.invalidate(name)
                self._cluster.topic(name, deadline)
            if missing:
                raise BrokerUnavailableError(
                    f"The brokers do not agree yet on the topics {', '.join(missing)}; try again."
                )
            return found

        infos = self._cluster.retrying("Describing topics", attempt)
        brokers = {address.broker_id: address for address in self._cluster.brokers}
        topics = {info.name: described(info, brokers) for info in infos}
        return with_ends(self._cluster, topics) if ends else topics

    def give_up(
        self,
        topic: str,
        *,
        partitions: Iterable[int] = (),
        keep: bool | None = None,
        execute: bool = False,
    ) -> GiveUpPlan:
        """Give up what is lost of partitions that their brokers refuse, all or some; only said, not
        done, unless ``execute``.

        ``keep`` is whether what is there of their logs stays readable: None keeps it where a log is
        there and only too short, as of a backup. The partitions go on behind every offset that was
        ever given, once their brokers have followed, within seconds; readers of what is lost get
        OffsetOutOfRangeError, or a data loss. Raises UnknownTopicError, CoordinationError, and
        InvalidRequestError for partitions that are not refused, and where nothing is there to keep.
        """
        # Imported here: Spark tasks use this class and never talk to ZooKeeper.
        from spark_logbus.client.admin.give_up import give_up

        return give_up(
            topic, self._cluster.zookeeper, partitions=partitions, keep=keep, execute=execute
        )

    def describe_cluster(self) -> ClusterDescription:
        """Brokers, with what they lead and hold, and partitions that nobody serves now.

        The brokers are those that are registered in ZooKeeper, and those that are not and lead a
        partition. CoordinationError if ZooKeeper cannot be reached.
        """
        # Imported here: Spark tasks use this class and never talk to ZooKeeper.
        from spark_logbus.client.admin.cluster_health import describe_cluster

        return describe_cluster(self._cluster, self.describe(None, ends=True))

    # -- moves ------------------------------------------------------------------------------

    def move_partitions(
        self,
        moves: Mapping[TopicPartition, int | Sequence[int]],
        throttle: int = DEFAULT_THROTTLE,
    ) -> set[TopicPartition]:
        """Have partitions move to other brokers, by id; returns those that are not there already.

        Where a partition has or is to have several replicas, all brokers that are to have one are
        given, the preferred leader first; it has as many from then on.

        The brokers do it, whether anybody waits or not: see ``describe_moves``. Each of them copies
        ``throttle`` bytes a second at most, 0: as fast as it can. Writers and readers go on. Raises
        UnknownTopicError, BrokerUnavailableError for a broker that is not running, and
        InvalidRequestError for one that takes no partitions, and for a partition that is on its way
        to another broker. The moves of one topic begin all together or not at all.
        """
        return move_partitions(self._cluster, moves, throttle)

    def cancel_moves(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """End moves, also those that have failed; returns the partitions that stay where they are
        therefore. The others have arrived, or were not to be moved. UnknownTopicError."""
        return cancel_moves(self._cluster, partitions)

    def describe_moves(self, since: Iterable[MoveDescription] = ()) -> list[MoveDescription]:
        """All moves that are under way or have failed, by partition, with how far they are.

        Their rates and the time left are known to those who look twice, and give what they saw
        before as ``since``.
        """
        return described_moves(self.describe(), self._cluster.clock.monotonic(), since)

    def elect_preferred(
        self, topic: str, partitions: Collection[int] = ()
    ) -> dict[int, LogbusError | None]:
        """Have partitions of a topic, by default all, led by their preferred leaders, the first
        brokers to which they are assigned; returns for each None, or the reason why not: that
        broker is not in sync, say. Raises UnknownTopicError, BrokerUnavailableError."""
        return elect_preferred(self._cluster, topic, partitions)

    def elect_unclean(
        self,
        topic: str,
        partitions: Collection[int] = (),
        *,
        broker: int | None = None,
        execute: bool = False,
    ) -> UncleanPlan:
        """Have partitions that no broker in sync can lead led by the brokers that have the most of
        them, or by ``broker``: what those lack is lost. Only said, not done, unless ``execute``.

        All that are offline, or those that are named. They go on behind every offset that was ever
        given, as those that are given up do. Raises UnknownTopicError, CoordinationError, and
        InvalidRequestError where nothing is offline and none is named, or that broker is away.
        """
        described = self.describe([topic], ends=not partitions)[topic]
        plan = plan_unclean(self._cluster, described, partitions, broker)
        return elect(self._cluster, topic, plan) if execute else plan

    def plan_drain(self, broker: int) -> MovePlan:
        """The moves that give all partitions of a broker to the others; ``drain`` does them.

        Raises InvalidRequestError for a broker that there is not, and where no other one takes
        partitions, BrokerUnavailableError for one that is not running, CoordinationError.
        """
        from spark_logbus.client.admin.placement import read_placement

        return plan_drain(read_placement(self, self._cluster), broker)

    def drain(self, broker: int, throttle: int = DEFAULT_THROTTLE) -> MovePlan:
        """Place nothing new on a broker from now on, and have all that it has move away; returns
        what has been begun. Raises what ``plan_drain`` does, and then nothing is changed."""
        from spark_logbus.client.admin.placement import drain

        plan = drain(self, self._cluster, broker)
        self.move_partitions(plan.targets(), throttle)
        return plan

    def undo_drain(self, broker: int) -> bool:
        """Let partitions be placed on a broker again; False if it was not being drained. What has
        been moved stays where it is, and moves that are under way go on: see ``cancel_moves``."""
        from spark_logbus.client.admin.placement import undo_drain

        return undo_drain(self._cluster, broker)

    def plan_replicas(self, topic: str, replicas: int) -> MovePlan:
        """The moves that give each partition of a topic so many replicas, for ``move_partitions``.

        Raises UnknownTopicError, InvalidRequestError where there are too few brokers,
        CoordinationError.
        """
        from spark_logbus.client.admin.placement import read_placement

        return plan_replicas(read_placement(self, self._cluster), topic, replicas)

    def plan_rebalance(self) -> MovePlan:
        """The moves that level what brokers have, by bytes and then by number of partitions, for
        ``move_partitions``: none if all is within 10 % of the mean. CoordinationError."""
        from spark_logbus.client.admin.placement import read_placement

        return plan_rebalance(read_placement(self, self._cluster))

    # -- groups -----------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """All groups that ever committed, were rewound, or had an owner or a member, by name.

        What groups have is in ZooKeeper: at the address that the cluster was found by, else at
        ``LOGBUS_ZOOKEEPER`` or the local default. Raises CoordinationError, as do the others.
        """
        with self._stored_groups() as groups:
            return groups.names()

    def describe_group(self, group: str) -> GroupDescription:
        """Owners, members, committed offsets with their lag, and rewinds. InvalidRequestError for
        a group of which nothing is known."""
        from spark_logbus.client.admin.groups import describe_group

        with self._stored_groups() as groups:
            stored = groups.read(group)
        return describe_group(self, stored)

    def rewind(
        self,
        group: str,
        to: Target | str,
        *,
        topics: Sequence[str] | None = None,
        execute: bool = False,
        why: str = "",
        by: str | None = None,
    ) -> GroupRewind:
        """Set a group's committed offsets back, or forward; only said, not done, unless
        ``execute``.

        ``to`` is ``"earliest"``, ``"-1000"`` records or ``"-10 minutes"`` before the end, or an
        ``OffsetSpec``, ``ShiftBack`` or ``PerPartition``. ``topics`` are by default all that the
        group has committed offsets for. A query of the group follows with its next micro-batch,
        consumers that share it with their next commit. Raises InvalidRequestError when there is
        nothing to be set.
        """
        from spark_logbus.client.admin.groups import rewind_group

        return rewind_group(
            self,
            self._cluster.zookeeper,
            group,
            to,
            topics=topics,
            execute=execute,
            why=why,
            by=by,
        )

    def forget_offsets(self, group: str, topics: Iterable[str]) -> list[str]:
        """Forget what the group has committed for ``topics``, such as deleted ones; those for
        which that was something. InvalidRequestError while anybody reads one for the group."""
        with self._stored_groups() as groups:
            return groups.forget(group, topics)

    def delete_group(self, group: str) -> None:
        """Forget a group's offsets and rewinds. InvalidRequestError while anybody uses it, or if
        there is no such group."""
        with self._stored_groups() as groups:
            groups.delete(group)

    def _stored_groups(self) -> AbstractContextManager[StoredGroups]:
        # Imported here: Spark tasks use this class and never talk to ZooKeeper.
        from spark_logbus.client.admin.stored_groups import stored_groups

        return stored_groups(self._cluster.zookeeper)

    def _wait_for_all_brokers(
        self,
        name: str,
        change: str,
        is_seen: Callable[[Sequence[TopicInfo]], bool],
        deadline: Deadline,
    ) -> None:
        """Waits until the metadata of every live broker show the change to the topic."""
        self._cluster.invalidate(name)
        request = MetadataRequest(topics=[name])

        def attempt(deadline: Deadline) -> None:
            for broker in self._cluster.brokers:
                try:
                    response = self._cluster.call(
                        broker, Api.METADATA, request, MetadataResponse, deadline=deadline
                    )
                except BrokerUnavailableError:
                    continue  # it reads the topics anew when it comes back
                if not is_seen(response.topics):
                    raise RequestTimeoutError(
                        f"{broker} has not yet heard that topic {name} was {change}."
                    )

        action = f"Waiting for all brokers to hear that topic {name} was {change}"
        self._cluster.retrying(action, attempt, deadline=deadline)

    def _wait_for_leaders(self, name: str, deadline: Deadline) -> TopicDescription:
        ready: set[int] = set()

        def attempt(deadline: Deadline) -> None:
            topic = self._cluster.topic(name, deadline)
            asked = [
                ListOffsetsPartition(name, number, "latest")
                for number in topic.leaders
                if number not in ready
            ]
            answers, failures = self._list_offsets.ask_available(asked, deadline)
            ready.update(asked[number].partition for number in answers)
            if failures:
                raise failures[min(failures)].again()

        self._cluster.retrying(
            f"Waiting for the leaders of topic {name}",
            attempt,
            topics=[name],
            deadline=deadline,
            backoff=_LEADERS,
        )
        return self.describe([name], ends=False)[name]
