"""Times without service, as a producer of one record after the other sees them."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

from spark_logbus.client import Cluster, Producer
from spark_logbus.model import TopicPartition
from tests.fault.load.cluster_on_hosts import SESSION_S
from tests.fault.load.records import PRODUCER, WAIT_S, value_of
from tests.fault.load.writers import Writer

_EVERY_S = 0.02


class Prober(Writer):
    """Sends the next record to a partition when the one before is acknowledged, and notes when
    that was."""

    def __init__(self, number: int, cluster: Cluster, where: TopicPartition) -> None:
        super().__init__(number, [where], "prober")
        self._cluster = cluster
        self._acknowledged = [time.monotonic()]

    def work(self) -> None:
        (where,) = self.partitions
        with Producer(self._cluster, PRODUCER) as producer:
            while not self.stopping.wait(_EVERY_S):
                (record,) = self.take(1)
                future = producer.send(where.topic, value_of(record), partition=where.partition)
                offset = future.result(WAIT_S).offset
                assert offset is not None
                self._acknowledged.append(time.monotonic())
                self.places.add(where, offset, [record])
                self.progress += 1

    def longest_pause(self, since: float) -> float:
        return longest_pause(self._acknowledged, since)


def longest_pause(acknowledged: Sequence[float], since: float) -> float:
    """Returns the longest time, all of it after ``since``, until something was acknowledged."""
    times = [since, *(each for each in acknowledged if each > since)]
    return max((after - before for before, after in pairwise(times)), default=0.0)


def told(pauses: Mapping[str, Sequence[float]], *, of_leaders: Collection[str]) -> str:
    """Returns a table of the pauses by kind of fault, and of all of those kinds together after
    which another broker leads."""
    together = [each for kind in of_leaders for each in pauses.get(kind, ())]
    lines = [f"{'without service, in seconds':<40}{'count':>6}{'p50':>8}{'p99':>8}{'most':>8}"]
    lines += [_line(kind, each) for kind, each in sorted(pauses.items()) if each]
    if together:
        lines.append(_line("another leads, after any of these faults", together))
        goals = [f"{SESSION_S + more:g} s" for more in (1, 3)]
        lines.append(
            f"(sessions last {SESSION_S:g} s; the goal: p50 < {goals[0]}, p99 < {goals[1]})"
        )
    return "\n".join(lines)


def _line(kind: str, pauses: Sequence[float]) -> str:
    ranks = [percentile(pauses, share) for share in (0.5, 0.99, 1)]
    return f"{kind:<40}{len(pauses):>6}" + "".join(f"{each:>8.2f}" for each in ranks)


def percentile(values: Iterable[float], share: float) -> float:
    """Returns the smallest value that this share of all does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
