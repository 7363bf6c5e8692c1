"""Requests that create, alter and delete topics: checked here, decided by ZooKeeper."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from spark_logbus.broker.config import BrokerConfig
from spark_logbus.broker.handlers.handler import Handle, RequestContext
from spark_logbus.broker.handlers.work_executor import WorkExecutor
from spark_logbus.broker.metadata_cache import MetadataCache
from spark_logbus.coordination.cluster.brokers import REPLICATES, BrokerRegistry
from spark_logbus.coordination.cluster.drained import DrainedBrokers, takers
from spark_logbus.coordination.cluster.spreading import enlarge
from spark_logbus.coordination.cluster.topic_records import (
    TopicRecord,
    check_enlarged,
    check_topic,
)
from spark_logbus.coordination.cluster.topics import TopicRegistry
from spark_logbus.coordination.subjects import SubjectReader
from spark_logbus.errors import BrokerUnavailableError, ConfigError
from spark_logbus.log import LogConfig
from spark_logbus.network import Answer, Response
from spark_logbus.protocol import (
    AlterTopicRequest,
    AlterTopicResponse,
    Api,
    CreateTopicRequest,
    CreateTopicResponse,
    DeleteTopicRequest,
    DeleteTopicResponse,
    encode_response,
)
from spark_logbus.topic_replication import REPLICATION_KEYS
from spark_logbus.topic_schemas import TopicSchemas, with_subjects
from spark_logbus.zookeeper import CorruptNodeError


class TopicHandler:
    """Answers requests that change topics. Thread-safe, keeps nothing."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        metadata_cache: MetadataCache,
        topics: TopicRegistry,
        drained: DrainedBrokers,
        brokers: BrokerRegistry,
        subjects: SubjectReader,
        executor: WorkExecutor,
    ) -> None:
        self._config = config
        self._metadata_cache = metadata_cache
        self._topics = topics
        self._drained = drained
        self._brokers = brokers
        self._subjects = subjects
        self._executor = executor

    def handlers(self) -> Mapping[Api, Handle]:
        return {
            Api.CREATE_TOPIC: self.create,
            Api.DELETE_TOPIC: self.delete,
            Api.ALTER_TOPIC: self.alter,
        }

    def create(self, request: CreateTopicRequest, _: RequestContext) -> Answer:
        config = with_subjects(request.name, request.config)
        checked = LogConfig.from_topic_config(config, self._config.log)  # refuse before it exists

        def create() -> Response:
            live = self._live_brokers()
            check_topic(
                request.name,
                partitions=request.partitions,
                replicas=request.replicas,
                brokers=live,
                config=config,
            )
            self._check_partitions(
                request.name,
                request.partitions,
                added=request.partitions,
                replicas=request.replicas,
                brokers=len(live),
            )
            self._check_replicates(request.name, request.replicas, config)
            self._check_subjects(request.name, checked.schemas)
            record = self._topics.create(
                request.name,
                partitions=request.partitions,
                replicas=request.replicas,
                brokers=live,
                racks=live,
                config=config,
            )
            return Response(encode_response(CreateTopicResponse(record.topic_id, record.replicas)))

        return self._executor.run(create)

    def _check_subjects(self, topic: str, schemas: TopicSchemas) -> None:
        """Refuse a subject without a schema: nothing could be written. Raises ConfigError."""
        found = self._subjects.read(schemas.subjects.values()) if schemas.subjects else {}
        for key, subject in schemas.subjects.items():
            ids = found[subject]
            if isinstance(ids, CorruptNodeError):
                raise ids
            if not ids.live_ids:
                raise ConfigError(
                    f"{key} of the topic {topic!r} is {subject!r}, and that subject has no schema; "
                    "register one first, or create the topic with its schema."
                )

    def delete(self, request: DeleteTopicRequest, _: RequestContext) -> Answer:
        def delete() -> Response:
            self._topics.delete(request.name, topic_id=request.topic_id)
            return Response(encode_response(DeleteTopicResponse()))

        return self._executor.run(delete)

    def alter(self, request: AlterTopicRequest, _: RequestContext) -> Answer:
        """Every leader sees the change in its watch of the topics, and applies it."""

        def alter() -> Response:
            live = {} if request.partitions is None else self._live_brokers()

            def change(now: TopicRecord) -> TopicRecord:
                config = altered(now.name, now.config, put=request.set, drop=request.unset)
                LogConfig.from_topic_config(config, self._config.log)
                new = {key: text for key, text in config.items() if key not in now.config}
                self._check_replicates(now.name, 1, new)
                made = dataclasses.replace(now, config=config)
                return made if request.partitions is None else self._enlarge(made, request, live)

            before, after = self._topics.alter(request.name, change)
            return Response(
                encode_response(
                    AlterTopicResponse(
                        config_before=before.config,
                        config=after.config,
                        partitions_before=len(before.partitions),
                        partitions=len(after.partitions),
                    )
                )
            )

        return self._executor.run(alter)

    def _enlarge(
        self, now: TopicRecord, request: AlterTopicRequest, live: Mapping[int, str | None]
    ) -> TopicRecord:
        have, wanted = len(now.partitions), request.partitions or 0
        if wanted < have:
            raise ConfigError(
                f"The topic {now.name!r} has {have} partitions and cannot have {wanted}: taking "
                "partitions away would lose records. Create another topic."
            )
        if wanted == have:
            return now
        check_enlarged(now.name, partitions=wanted, replicas=now.replicas, brokers=live)
        self._check_partitions(
            now.name, wanted, added=wanted - have, replicas=now.replicas, brokers=len(live)
        )
        self._check_replicates(now.name, now.replicas, {})
        others = self._metadata_cache.topics.values()
        return enlarge(now, partitions=wanted, brokers=live, racks=live, others=others)

    def _live_brokers(self) -> dict[int, str | None]:
        """Asks for the brokers that a topic may be on, with the rack of each: also one that has
        just started, and none that has gone or is being drained."""
        live = {each.broker_id: each.rack for each in self._metadata_cache.look_up_brokers()}
        if not live:
            raise BrokerUnavailableError(
                "No broker is registered in ZooKeeper at the moment; try again."
            )
        return {each: live[each] for each in takers(live, self._drained.ids())}

    def _check_replicates(self, name: str, replicas: int, config: Mapping[str, str]) -> None:
        """Refuse what a live broker of an earlier release does not understand: it would lead
        what it has no right to, or could not read the topic's configuration."""
        if replicas == 1 and config.keys().isdisjoint(REPLICATION_KEYS):
            return
        behind = [
            each.address.broker_id
            for each in self._brokers.registrations()
            if not each.features & REPLICATES
        ]
        if behind:
            raise ConfigError(
                f"The topic {name!r} cannot have replicas, nor settings of them, while brokers of "
                f"an earlier release run ({', '.join(map(str, behind))}); upgrade those first."
            )

    def _check_partitions(
        self, name: str, wanted: int, *, added: int, replicas: int, brokers: int
    ) -> None:
        """Refuse what the brokers could not hold. Topics made at the same moment do not count."""
        most = self._config.max_partitions_per_topic
        if added and wanted > most:
            raise ConfigError(
                f"The topic {name!r} cannot have {wanted} partitions: {most} is the most that this "
                "broker allows (max_partitions_per_topic)."
            )
        have = sum(
            len(assigned)
            for topic in self._metadata_cache.topics.values()
            for assigned in topic.partitions.values()
        )
        each = self._config.max_partitions_per_broker
        more = added * replicas
        if added and have + more > each * brokers:
            raise ConfigError(
                f"There are {have} partitions on {brokers} brokers, and {more} more would be "
                f"above {each} for each broker (max_partitions_per_broker). Delete topics that "
                "are not needed, or add a broker."
            )


def altered(
    name: str, config: Mapping[str, str], *, put: Mapping[str, str], drop: Sequence[str]
) -> dict[str, str]:
    """``config`` with keys set and unset. Unsetting what is not set is no change, so that a
    request whose answer was lost can be repeated."""
    for key in drop:
        if key in put:
            raise ConfigError(f"{key} of the topic {name!r} is to be both set and unset.")
    kept = {key: value for key, value in config.items() if key not in drop}
    return {**kept, **put}
