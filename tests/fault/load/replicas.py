"""Faults of brokers, their disks, ZooKeeper and the network, under load, and the checks after
each of them."""

from __future__ import annotations

import logging
import os
import random
import re
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from spark_logbus.client import Admin, Cluster
from spark_logbus.coordination.cluster.partition_states import PartitionStates
from spark_logbus.coordination.payloads import PartitionState
from spark_logbus.model import Latest, TopicPartition
from spark_logbus.zookeeper import Session
from tests.fault.load.cluster_on_hosts import LAG_S, SESSION_S, MachinesOnHosts
from tests.fault.load.compacted import KEYED
from tests.fault.load.failovers import Prober
from tests.fault.load.logs import check_compacted_same, check_same
from tests.fault.load.machines import pause
from tests.fault.load.participants import Everyone
from tests.fault.load.records import WAIT_S
from tests.helpers import wait_until

logger = logging.getLogger(__name__)

_LONG_S: Final = 2 * max(SESSION_S, LAG_S)
_LEADING: Final = re.compile(r"Leading (\S+) in epoch (\d+)")


@dataclass(frozen=True)
class Scene:
    """Objects of a fault: brokers in an order by chance, of which the first leads ``where``."""

    machines: MachinesOnHosts
    chance: random.Random
    where: TopicPartition
    brokers: Sequence[int]
    wait_until_in_sync: Callable[[], None]

    @property
    def first(self) -> int:
        return self.brokers[0]

    @property
    def second(self) -> int:
        return self.brokers[1]

    def some_time(self) -> float:
        """Returns less than a session may be silent."""
        return self.chance.random() * SESSION_S / 2

    def a_while(self) -> float:
        """Returns less, as much or more than a session may be silent."""
        return self.chance.choice([self.some_time(), SESSION_S, _LONG_S])


Fault = Callable[[Scene], None]


def nothing(_: Scene) -> None:
    pass


def killed(scene: Scene) -> None:
    scene.machines.kill(scene.first, away_s=scene.a_while())


def killed_for_long(scene: Scene) -> None:
    scene.machines.kill(scene.first, away_s=_LONG_S)


def two_killed(scene: Scene) -> None:
    scene.machines.kill(*scene.brokers[:2], away_s=scene.a_while())


def all_killed(scene: Scene) -> None:
    scene.machines.kill(*scene.brokers, away_s=scene.some_time())


def one_after_the_other_killed(scene: Scene) -> None:
    for broker_id in scene.brokers:
        scene.machines.kill(broker_id, away_s=scene.some_time())


def pauses(scene: Scene) -> None:
    scene.machines.stand_still(scene.first, scene.some_time())


def sleeps(scene: Scene) -> None:
    scene.machines.stand_still(scene.first, _LONG_S)


def killed_when_another_lags(scene: Scene) -> None:
    """The second is out of sync when the first is killed, so that only the third may lead."""
    machines = scene.machines
    machines.slow_disks([scene.second], LAG_S, 2 * LAG_S)
    machines.kill(scene.first, away_s=SESSION_S)


def zookeeper_killed(scene: Scene) -> None:
    scene.machines.kill_zookeeper(away_s=scene.some_time())


def zookeeper_away(scene: Scene) -> None:
    scene.machines.kill_zookeeper(away_s=_LONG_S)


def killed_with_zookeeper(scene: Scene) -> None:
    scene.machines.brokers[scene.first].kill()
    scene.machines.kill_zookeeper(away_s=scene.some_time())
    scene.machines.brokers[scene.first].start()


def isolated(scene: Scene) -> None:
    machines, host = scene.machines, scene.machines.hosts[scene.first]
    machines.cut([host], [each for each in machines.everything if each is not host], _LONG_S)


def cut_from_brokers(scene: Scene) -> None:
    machines = scene.machines
    machines.cut([machines.hosts[scene.first]], machines.others(scene.first), _LONG_S)


def cut_from_one_broker(scene: Scene) -> None:
    machines = scene.machines
    machines.cut([machines.hosts[scene.first]], [machines.hosts[scene.second]], _LONG_S)


def cut_from_zookeeper(scene: Scene) -> None:
    machines = scene.machines
    machines.cut([machines.hosts[scene.first]], [machines.zookeeper_host], _LONG_S)


def cut_from_clients(scene: Scene) -> None:
    machines = scene.machines
    machines.cut([machines.hosts[scene.first]], [machines.clients], scene.a_while())


def cut_from_zookeeper_and_brokers(scene: Scene) -> None:
    """Clients still reach the leader, which does not know that others have elected another one."""
    machines = scene.machines
    others = [machines.zookeeper_host, *machines.others(scene.first)]
    machines.cut([machines.hosts[scene.first]], others, _LONG_S)


def unheard_by_brokers(scene: Scene) -> None:
    machines = scene.machines
    machines.lose([machines.hosts[scene.first]], machines.others(scene.first), _LONG_S)


def deaf_to_brokers(scene: Scene) -> None:
    machines = scene.machines
    machines.lose(machines.others(scene.first), [machines.hosts[scene.first]], _LONG_S)


def unheard_by_zookeeper(scene: Scene) -> None:
    machines = scene.machines
    machines.lose([machines.hosts[scene.first]], [machines.zookeeper_host], _LONG_S)


def deaf_to_zookeeper(scene: Scene) -> None:
    machines = scene.machines
    machines.lose([machines.zookeeper_host], [machines.hosts[scene.first]], _LONG_S)


def unheard_by_clients(scene: Scene) -> None:
    machines = scene.machines
    machines.lose([machines.hosts[scene.first]], [machines.clients], scene.a_while())


def deaf_to_clients(scene: Scene) -> None:
    machines = scene.machines
    machines.lose([machines.clients], [machines.hosts[scene.first]], scene.a_while())


def slow_disk(scene: Scene) -> None:
    scene.machines.slow_disks([scene.first], scene.chance.choice([0.05, 0.5, LAG_S]), _LONG_S)


def two_slow_disks(scene: Scene) -> None:
    scene.machines.slow_disks(scene.brokers[:2], scene.chance.choice([0.05, 0.5]), _LONG_S)


def emptied(scene: Scene) -> None:
    scene.machines.empty_disk(scene.first)


def emptied_and_another_killed(scene: Scene) -> None:
    """The first is not in sync yet when the second is killed."""
    scene.machines.empty_disk(scene.first)
    scene.machines.kill(scene.second, away_s=scene.a_while())


def restarted_in_turn(scene: Scene) -> None:
    for broker_id in sorted(scene.machines.brokers):
        scene.machines.restart(broker_id)
        scene.wait_until_in_sync()


def _when_another_is_to_lead(point: str, then: Callable[[Scene, int], None]) -> Fault:
    """A fault of the broker that comes to a point of an election, or of a change of who is in sync,
    after the first was killed."""

    def fault(scene: Scene) -> None:
        machines = scene.machines
        machines.points.arm(point, scene.where.topic)
        first = machines.brokers[scene.first]
        machines.killed.add(scene.first)
        first.kill()
        if point in _OF_MEMBERS:
            pause(SESSION_S)
            first.launch()  # it may have led all: then who is in sync changes when it is back
        stopped = machines.wait_for_point(point, scene.where.topic)
        try:
            then(scene, stopped)
        finally:
            os.kill(machines.brokers[stopped].pid, signal.SIGCONT)
        if not first.running:
            first.launch()
        first.wait_until_ready()
        machines.killed.clear()

    fault.__name__ = f"{then.__name__}_at_{point}"
    _AT_POINTS.add(fault)
    return fault


_AT_POINTS: Final[set[Fault]] = set()
_OF_MEMBERS: Final = ("changing-in-sync", "changed-in-sync")


def other_killed(scene: Scene, stopped: int) -> None:
    scene.machines.kill(stopped, away_s=scene.a_while())


def other_sleeps(scene: Scene, stopped: int) -> None:
    pause(_LONG_S)


def zookeeper_killed_too(scene: Scene, stopped: int) -> None:
    scene.machines.kill_zookeeper(away_s=scene.some_time())


#: Harm that one copy survives where it can be brought back as it was.
FAULTS: Final[Sequence[Fault]] = [
    killed, isolated, sleeps, zookeeper_killed, cut_from_zookeeper_and_brokers,
    unheard_by_brokers, slow_disk, all_killed, cut_from_clients, restarted_in_turn,
    deaf_to_zookeeper, killed_with_zookeeper, two_killed, nothing, killed_for_long,
    one_after_the_other_killed, pauses, killed_when_another_lags, zookeeper_away,
    cut_from_brokers, cut_from_one_broker, cut_from_zookeeper, deaf_to_brokers,
    unheard_by_zookeeper, unheard_by_clients, deaf_to_clients, two_slow_disks,
]  # fmt: skip

#: Harm that needs copies.
WITH_COPIES: Final[Sequence[Fault]] = [
    emptied,
    emptied_and_another_killed,
    *(
        _when_another_is_to_lead(point, then)
        for point in ("elected", "electing", *_OF_MEMBERS)
        for then in (other_killed, other_sleeps, zookeeper_killed_too)
    ),
]

#: After these another broker leads what the first did, or has to.
_OF_LEADERS: Final = {
    killed_for_long: "killed",
    killed_when_another_lags: "killed, another one out of sync",
    sleeps: "stands still",
    isolated: "cut off from everything",
    cut_from_zookeeper_and_brokers: "cut off from brokers and ZooKeeper",
    cut_from_zookeeper: "cut off from ZooKeeper",
    emptied: "killed and its disk emptied",
    restarted_in_turn: "rolling restart",
}


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
        known = [*self._probers] if fault in _AT_POINTS else self._partitions
        where = known[number % len(known)]
        leaders = {one: self._state(one).leader for one in self._partitions}
        first = leaders[where]
        others = sorted(self._machines.brokers.keys() - {first})
        self._chance.shuffle(others)
        scene = Scene(
            self._machines, self._chance, where, [first, *others], self._wait_until_in_sync
        )
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
        if fault in _OF_LEADERS:
            self.pauses[_OF_LEADERS[fault]] += pauses.values()
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
