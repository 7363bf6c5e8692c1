"""Changes of topics while partitions move and brokers fail."""

from __future__ import annotations

import random
import threading
from typing import Final

from spark_logbus.client import Admin, Cluster, Producer, RangeReader
from spark_logbus.errors import ConfigError
from spark_logbus.model import OffsetRange, TopicPartition
from tests.fault.load.moves import begin
from tests.fault.load.participants import Participant
from tests.fault.load.records import PRODUCER, WAIT_S
from tests.helpers import wait_until

OTHER: Final = "other"
_TIMEOUT_MS: Final = 240_000
_PARTITIONS: Final = 3
_RECORDS: Final = 100


class Changer(Participant):
    """Alters a topic that others use. Creates another one, fills it, has it move, and deletes it,
    again and again: nothing of a topic is ever in the next one of that name."""

    is_slow = True

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        brokers: int,
        moving: bool,
        replicas: int,
        creating: threading.Lock,
    ) -> None:
        super().__init__("changer")
        self._cluster = cluster
        self._admin = Admin(cluster)
        self._topic = topic
        self._brokers = brokers
        self._moving = moving
        self._replicas = replicas
        self._creating = creating
        self._chance = random.Random(self.name)

    def work(self) -> None:
        while not self.stopping.is_set():
            size = self._chance.choice([1 << 20, 2 << 20])
            self._admin.alter_topic(
                self._topic, put={"segment.bytes": size}, timeout_ms=_TIMEOUT_MS
            )
            self._live()
            self.progress += 1
            self.stopping.wait(1)

    def _create(self) -> bool:
        """Creates the other topic, unless brokers are away that it needs, and waits until all its
        replicas are in sync."""
        with self._creating:
            try:
                self._admin.create_topic(
                    OTHER,
                    partitions=_PARTITIONS,
                    timeout_ms=_TIMEOUT_MS,
                    replicas=self._replicas,
                    if_not_exists=True,
                )
            except ConfigError:
                assert self._replicas > 1, "one broker is enough"
                return False
            if self._replicas > 1:
                wait_until(self._is_in_sync, deadline_s=WAIT_S, message="replicas to be in sync")
        return True

    def _is_in_sync(self) -> bool:
        described = self._admin.describe([OTHER], ends=False)[OTHER].partitions.values()
        return all(len(part.in_sync) == self._replicas for part in described)

    def _live(self) -> None:
        """One life of the other topic."""
        chance, life = self._chance, self.progress
        wait_until(self._create, deadline_s=WAIT_S, message="enough brokers for the other topic")
        where = [TopicPartition(OTHER, number) for number in range(_PARTITIONS)]
        with Producer(self._cluster, PRODUCER) as producer:
            for one in where:
                for number in range(_RECORDS):
                    producer.send(OTHER, b"%d:%d" % (life, number), partition=one.partition)
        if self._moving:
            moves = {one: chance.randint(1, self._brokers) for one in where}
            begin(self._admin, moves, throttle=0)
        self.stopping.wait(chance.choice([0, 0.3, 3]))
        if self._moving:
            self._admin.cancel_moves(chance.sample(where, 2))
        expected = [b"%d:%d" % (life, number) for number in range(_RECORDS)]
        one = chance.choice(where)
        found = [
            value
            for batch in RangeReader(self._cluster, OffsetRange(one, 0, _RECORDS))
            for value in batch.arrow_batch.column("value").to_pylist()
        ]
        assert found == expected
        self._admin.delete_topic(OTHER, timeout_ms=_TIMEOUT_MS)
