"""Rounds of faults under load, and the checks after each of them."""

from __future__ import annotations

import logging
import random
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from spark_logbus.client import Admin, Cluster
from spark_logbus.coordination.cluster.partition_states import PartitionStates
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.model import Latest, TopicPartition
from spark_logbus.zookeeper import Session
from tests.fault.load.cluster_on_hosts import MachinesOnHosts
from tests.fault.load.compacted import KEYED
from tests.fault.load.failovers import Prober
from tests.fault.load.logs import check_compacted_same, check_same
from tests.fault.load.participants import Everyone
from tests.fault.load.records import WAIT_S
from tests.fault.load.replica_faults import AT_POINTS, Fault, Scene, restarted_in_turn
from tests.helpers import wait_until

logger = logging.getLogger(__name__)

_LEADING: Final = re.compile(r"Leading (\S+) in epoch (\d+)")


class Rounds:
    """Faults one after the other; after each of them all is as it should be."""

    def __init__(
        self,
        machines: MachinesOnHosts,
        cluster: Cluster,
        everyone: Everyone,
        partitions: Sequence[TopicPartition],
        probers: Sequence[Prober],
        *,
        states: PartitionStates,
        replicas: int,
        seed: int,
    ) -> None:
        self._machines = machines
        self._admin = Admin(cluster)
        self._everyone = everyone
        self._partitions = partitions
        self._probers = {prober.partitions[0]: prober for prober in probers}
        self._states = states
        self._replicas = replicas
        self._chance = random.Random(seed)
        self._compared = dict.fromkeys(self._probers, 0)
        #: Times without service, in seconds, by kind of fault.
        self.pauses: dict[str, list[float]] = defaultdict(list)

    def run(self, number: int, fault: Fault) -> None:
        self._wait_until_in_sync()
        # Where a broker is to come to a point, the others have to lead some of the topic too.
        known = [*self._probers] if fault in AT_POINTS else self._partitions
        where = known[number % len(known)]
        leaders = {one: self._state(one).leader for one in self._partitions}
        first = leaders[where]
        others = sorted(self._machines.brokers.keys() - {first})
        self._chance.shuffle(others)
        scene = Scene(
            self._machines, self._chance, where, [first, *others],
            self._wait_until_in_sync, self._everyone.get_on,
        )  # fmt: skip
        logger.info("Round %d: %s; broker %d.", number, fault.__name__, first)
        began = time.monotonic()
        fault(scene)
        over = time.monotonic()
        self._everyone.get_on()
        self._machines.alive()
        self._wait_until_in_sync()
        pauses = {
            one: prober.longest_pause(began)
            for one, prober in self._probers.items()
            if leaders[one] == first or fault is restarted_in_turn
        }
        self.pauses[fault.__name__] += pauses.values()
        logger.info(
            "Round %d: %.1f s, in sync after %.1f s; without service for %s.",
            number, over - began, time.monotonic() - over,
            ", ".join(f"{each:.1f}" for each in sorted(pauses.values())),
        )  # fmt: skip
        self._compare()

    def _state(self, where: TopicPartition) -> PartitionState:
        state = self._states.states(where.topic)[where.partition]
        assert state is not None
        return state

    def _wait_until_in_sync(self) -> None:
        def lacking() -> Mapping[TopicPartition, list[int]]:
            found = {one: self._state(one).in_sync for one in self._partitions}
            return {one: ids for one, ids in found.items() if len(ids) < self._replicas}

        wait_until(
            lambda: not lacking(),
            deadline_s=WAIT_S,
            message=f"all replicas to be in sync ({self._replicas} of each partition)",
        )

    def _compare(self) -> None:
        """Compares what has come into the logs since the last time."""
        ends = self._admin.list_offsets(dict.fromkeys(self._compared, Latest()))
        for where, start in self._compared.items():
            end = ends[where] or 0
            self.check_logs(where, start, end)
            self._compared[where] = end

    def check_logs(self, where: TopicPartition, start: int, end: int) -> None:
        if self._replicas > 1:
            check_same(self._machines.data, where, start, end)

    def check_all(self) -> None:
        """Compares the logs from their beginnings, and who says to have led which of them."""
        for where, end in self._compared.items():
            self.check_logs(where, 0, end)
        if self._replicas > 1:
            end = self._admin.list_offsets({KEYED: Latest()})[KEYED] or 0
            check_compacted_same(self._machines.data, KEYED, end)
        leaders: dict[tuple[str, int], set[int]] = defaultdict(set)
        for broker_id, broker in self._machines.brokers.items():
            for where, epoch in _LEADING.findall(broker.log_file.read_text(errors="replace")):
                leaders[where, int(epoch)].add(broker_id)
        for where in self._compared:
            epochs = {epoch: ids for (name, epoch), ids in leaders.items() if name == str(where)}
            assert epochs, f"nobody says to have led {where}"
            several = {epoch: ids for epoch, ids in epochs.items() if len(ids) > 1}
            assert not several, f"{where} was led by several brokers in one epoch: {several}"


@contextmanager
def states_of(machines: MachinesOnHosts) -> Iterator[PartitionStates]:
    with Session(machines.zookeeper, client_name="test", operation_timeout_ms=60_000) as session:
        yield PartitionStates(session)
