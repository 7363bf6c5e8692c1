"""Chooses the replica that a reader asks: one on this machine, in its rack, or else the leader.

All replicas that are in sync have what readers may see, up to a high watermark that is a moment
older than the leader's. One that lags, or is in sync no more, is passed over for a while.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

from spark_logbus.clock import Clock
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.wire.connect import is_on_this_machine

# So long the leader is read when a follower could not do; then that one is tried again.
_AVOIDED_S: Final = 10.0


class _Distance(enum.IntEnum):
    HERE = 0
    SAME_RACK = 1
    ELSEWHERE = 2


class NearestReplicas:
    """Distances of brokers from this process, and partitions whose followers are passed over.
    Thread-safe."""

    def __init__(self, *, rack: str | None, local_sockets: bool, clock: Clock) -> None:
        self._rack = rack
        self._local_sockets = local_sockets
        self._clock = clock
        self._here: dict[str, bool] = {}  # by the name of the socket, which a new broker has anew
        self._avoided_until: dict[TopicPartition, float] = {}

    def choose(
        self,
        topic_partition: TopicPartition,
        leader: BrokerAddress | None,
        in_sync: Iterable[BrokerAddress],
    ) -> BrokerAddress | None:
        """Returns the one to read from: the ``leader``, unless another live one in sync is nearer;
        None where there is no live leader and none is near."""
        until = self._avoided_until.get(topic_partition)
        if until is not None:
            if self._clock.monotonic() < until:
                return leader
            self._avoided_until.pop(topic_partition, None)
        nearest = leader
        least = _Distance.ELSEWHERE if leader is None else self._distance(leader)
        for address in in_sync:
            if least is _Distance.HERE:
                break
            distance = self._distance(address)
            if distance < least:
                nearest, least = address, distance
        return nearest

    def avoid(self, topic_partition: TopicPartition) -> None:
        """Passes over the partition's followers for a while."""
        self._avoided_until[topic_partition] = self._clock.monotonic() + _AVOIDED_S

    def _distance(self, address: BrokerAddress) -> _Distance:
        if self._local_sockets and address.local_socket is not None:
            here = self._here.get(address.local_socket)
            if here is None:
                here = self._here[address.local_socket] = is_on_this_machine(address)
            if here:
                return _Distance.HERE
        same = self._rack is not None and address.rack == self._rack
        return _Distance.SAME_RACK if same else _Distance.ELSEWHERE
