"""Elections of leaders that somebody asks for."""

from __future__ import annotations

from spark_logbus.protocol.messages.api import Api, Message, Operation, declare, on_cluster
from spark_logbus.protocol.messages.error import ErrorInfo

__all__ = [
    "ElectRequest",
    "ElectResponse",
    "ElectResult",
    "ReplicaStanding",
    "UncleanElectRequest",
    "UncleanElectResponse",
    "UncleanElectResult",
]


class ElectRequest(Message):
    """Partitions of a topic that are to be led by their preferred leaders: asked of the broker that
    leads them now."""

    topic: str
    partitions: list[int]
    topic_id: str | None = None


class ElectResult(Message):
    """``done``: it was led by its preferred leader already."""

    partition: int
    done: bool = False
    error: ErrorInfo | None = None


class ElectResponse(Message):
    results: list[ElectResult]


declare(
    Api.ELECT, ElectRequest, ElectResponse,
    needs=on_cluster(Operation.ALTER),
    entries=lambda request: request.partitions,
)  # fmt: skip


class UncleanElectRequest(Message):
    """Partitions of a topic of which the broker that is asked tells what it has, or with ``epochs``
    is to lead them though it is not in sync. These are the leader epochs in which the partitions
    were led last, as it was told, in the order of ``partitions``: what would be lost was looked at
    then."""

    topic: str
    partitions: list[int]
    topic_id: str | None = None
    epochs: list[int] = []


class ReplicaStanding(Message):
    """A partition as it stands: who leads it in ZooKeeper, in which epoch, and which brokers are in
    sync. ``known_end`` is an offset that its log had reached on disk, and ``committed`` one up to
    which all was acknowledged; -1 where that is not known. The log of the broker that is asked has
    ``log_start`` to ``log_end``, the last of it in ``last_epoch``. ``go_on_at`` is where it
    would go on, behind all that may be lost."""

    leader: int
    leader_epoch: int
    in_sync: list[int]
    known_end: int = -1
    committed: int = -1
    log_start: int = -1
    log_end: int = -1
    last_epoch: int = -1
    go_on_at: int = -1


class UncleanElectResult(Message):
    """``standing`` is of before the election, if there was one. ``error`` says why the broker is
    not elected, or cannot be."""

    partition: int
    standing: ReplicaStanding | None = None
    error: ErrorInfo | None = None


class UncleanElectResponse(Message):
    results: list[UncleanElectResult]


declare(
    Api.ELECT_UNCLEAN, UncleanElectRequest, UncleanElectResponse,
    needs=on_cluster(Operation.ALTER),
    entries=lambda request: request.partitions,
)  # fmt: skip
