"""Faults of brokers, their disks, ZooKeeper and the network between them."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from spark_logbus.model import TopicPartition
from tests.fakes.disk import NOTHING, DisorderedSurvival, RandomSurvival, Survival
from tests.fault.load.cluster_on_hosts import LAG_S, SESSION_S, MachinesOnHosts
from tests.fault.load.machines import pause
from tests.helpers import frozen
from tests.servers.hosts import Host

_LONG_S: Final = 2 * max(SESSION_S, LAG_S)


@dataclass(frozen=True)
class Scene:
    """Objects of a fault: brokers in an order by chance, of which the first leads ``where``."""

    machines: MachinesOnHosts
    chance: random.Random
    where: TopicPartition
    brokers: Sequence[int]
    wait_until_in_sync: Callable[[], None]
    wait_for_clients: Callable[[], None]

    @property
    def first(self) -> int:
        return self.brokers[0]

    @property
    def second(self) -> int:
        return self.brokers[1]

    @property
    def host(self) -> Host:
        """Host of the first broker."""
        return self.machines.hosts[self.first]

    @property
    def others(self) -> Sequence[Host]:
        """Hosts of the other brokers, the second one's first."""
        return [self.machines.hosts[each] for each in self.brokers[1:]]

    def until_another_leads(self) -> None:
        """Waits for longer than a session may be silent, and until all clients have got on: they
        cannot without another leader."""
        pause(_LONG_S)
        self.wait_for_clients()

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
    with scene.machines.gone(scene.first):
        scene.until_another_leads()


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
    with frozen(scene.machines.brokers[scene.first].pid):
        scene.until_another_leads()


def killed_when_another_lags(scene: Scene) -> None:
    """The second is out of sync when the first is killed, so that only the third may lead."""
    machines = scene.machines
    with machines.slow_disks([scene.second], LAG_S):
        pause(2 * LAG_S)
    with machines.gone(scene.first):
        scene.until_another_leads()


def zookeeper_killed(scene: Scene) -> None:
    scene.machines.kill_zookeeper(away_s=scene.some_time())


def zookeeper_away(scene: Scene) -> None:
    scene.machines.kill_zookeeper(away_s=_LONG_S)


def killed_with_zookeeper(scene: Scene) -> None:
    scene.machines.brokers[scene.first].kill()
    scene.machines.kill_zookeeper(away_s=scene.some_time())
    scene.machines.brokers[scene.first].start()


def vanishes(scene: Scene) -> None:
    """Its connections stay open at all others, which hear nothing of their end."""
    with scene.machines.vanished(scene.first):
        scene.until_another_leads()


def isolated(scene: Scene) -> None:
    with scene.machines.isolated(scene.first):
        scene.until_another_leads()


def cut_from_brokers(scene: Scene) -> None:
    with scene.machines.cut([scene.host], scene.others):
        pause(_LONG_S)


def cut_from_one_broker(scene: Scene) -> None:
    with scene.machines.cut([scene.host], scene.others[:1]):
        pause(_LONG_S)


def cut_from_zookeeper(scene: Scene) -> None:
    with scene.machines.cut([scene.host], [scene.machines.zookeeper_host]):
        scene.until_another_leads()


def cut_from_zookeeper_and_brokers(scene: Scene) -> None:
    """Clients still reach the leader, which does not know that others have elected another one."""
    with scene.machines.cut([scene.host], [scene.machines.zookeeper_host, *scene.others]):
        scene.until_another_leads()


def cut_from_clients(scene: Scene) -> None:
    with scene.machines.cut([scene.host], [scene.machines.clients]):
        pause(scene.a_while())


def unheard_by_brokers(scene: Scene) -> None:
    with scene.machines.lose([scene.host], scene.others):
        pause(_LONG_S)


def deaf_to_brokers(scene: Scene) -> None:
    with scene.machines.lose(scene.others, [scene.host]):
        pause(_LONG_S)


def unheard_by_zookeeper(scene: Scene) -> None:
    with scene.machines.lose([scene.host], [scene.machines.zookeeper_host]):
        scene.until_another_leads()


def deaf_to_zookeeper(scene: Scene) -> None:
    with scene.machines.lose([scene.machines.zookeeper_host], [scene.host]):
        scene.until_another_leads()


def unheard_by_clients(scene: Scene) -> None:
    with scene.machines.lose([scene.host], [scene.machines.clients]):
        pause(scene.a_while())


def deaf_to_clients(scene: Scene) -> None:
    with scene.machines.lose([scene.machines.clients], [scene.host]):
        pause(scene.a_while())


def slow_disk(scene: Scene) -> None:
    with scene.machines.slow_disks([scene.first], scene.chance.choice([0.05, 0.5, LAG_S])):
        pause(_LONG_S)


def two_slow_disks(scene: Scene) -> None:
    with scene.machines.slow_disks(scene.brokers[:2], scene.chance.choice([0.05, 0.5])):
        pause(_LONG_S)


def emptied(scene: Scene) -> None:
    with scene.machines.creating:
        scene.machines.empty_disk(scene.first)


def emptied_and_another_killed(scene: Scene) -> None:
    """The first is not in sync yet when the second is killed."""
    with scene.machines.creating:
        scene.machines.empty_disk(scene.first)
        scene.machines.kill(scene.second, away_s=scene.a_while())


def _survival(scene: Scene) -> Survival:
    """Chooses what of the unsynced reaches the disk: nothing, or some of it."""
    seed = scene.chance.randrange(1 << 30)
    return scene.chance.choice([NOTHING, RandomSurvival(seed), DisorderedSurvival(seed)])


def powerless(scene: Scene) -> None:
    survival = _survival(scene)
    scene.machines.cut_power(scene.first, survival=survival, away_s=scene.a_while())


def two_powerless(scene: Scene) -> None:
    survival = _survival(scene)
    scene.machines.cut_power(*scene.brokers[:2], survival=survival, away_s=scene.a_while())


def all_powerless(scene: Scene) -> None:
    scene.machines.cut_power(*scene.brokers, survival=_survival(scene), away_s=scene.some_time())


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
    AT_POINTS.add(fault)
    return fault


AT_POINTS: Final[set[Fault]] = set()
_OF_MEMBERS: Final = ("changing-in-sync", "changed-in-sync")


def other_killed(scene: Scene, stopped: int) -> None:
    scene.machines.kill(stopped, away_s=scene.a_while())


def other_sleeps(scene: Scene, stopped: int) -> None:
    pause(_LONG_S)


def zookeeper_killed_too(scene: Scene, stopped: int) -> None:
    scene.machines.kill_zookeeper(away_s=scene.some_time())


#: Faults that one replica survives where it can be brought back as it was.
FAULTS: Final[Sequence[Fault]] = [
    nothing, killed, killed_for_long, two_killed, all_killed, one_after_the_other_killed,
    restarted_in_turn, pauses, sleeps, slow_disk, two_slow_disks, killed_when_another_lags,
    zookeeper_killed, zookeeper_away, killed_with_zookeeper, isolated, cut_from_brokers,
    cut_from_one_broker, cut_from_zookeeper, cut_from_zookeeper_and_brokers, cut_from_clients,
    unheard_by_brokers, deaf_to_brokers, unheard_by_zookeeper, deaf_to_zookeeper,
    unheard_by_clients, deaf_to_clients,
]  # fmt: skip

#: Faults that need replicas.
WITH_REPLICAS: Final[Sequence[Fault]] = [
    vanishes,
    emptied,
    emptied_and_another_killed,
    *(
        _when_another_is_to_lead(point, then)
        for point in ("elected", "electing", *_OF_MEMBERS)
        for then in (other_killed, other_sleeps, zookeeper_killed_too)
    ),
]

#: One fault of each kind, for a short run.
OF_EACH_KIND: Final[Sequence[Fault]] = [
    killed_for_long, vanishes, sleeps, isolated, cut_from_zookeeper_and_brokers,
    unheard_by_brokers, deaf_to_zookeeper, cut_from_clients, slow_disk, emptied_and_another_killed,
    zookeeper_killed, killed_with_zookeeper, all_killed, restarted_in_turn,
    _when_another_is_to_lead("elected", other_killed),
]  # fmt: skip

#: Faults of brokers that can lose power.
OF_POWER: Final[Sequence[Fault]] = [all_powerless, powerless, two_powerless]

#: Faults after which another broker leads what the first one did.
OF_LEADERS: Final[Collection[Fault]] = {
    killed_for_long, killed_when_another_lags, vanishes, sleeps, isolated, cut_from_zookeeper,
    cut_from_zookeeper_and_brokers, unheard_by_zookeeper, deaf_to_zookeeper, emptied,
}  # fmt: skip
