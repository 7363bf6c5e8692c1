"""Contents of the nodes: JSON, checked when it is read.

Unknown fields are ignored, so that a newer release can add some while older ones still run.
See docs/formats/zookeeper.md for an example of each.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from spark_logbus.zookeeper.unreadable import CorruptNodeError

NonNegative = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class BrokerPayload(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    started_us: NonNegative  # at the first registration; a leftover's is earlier than ours
    version: str
    session_timeout_ms: NonNegative = 0  # how long a leftover of this broker can stay
    local_socket: str | None = None  # for clients on the same machine
    features: NonNegative = 0  # bits, see cluster/brokers; earlier releases say nothing
    rack: str | None = None  # where it stands, in the operator's words
    tls_port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] | None = None
    gateway_port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] | None = None


class DrainedPayload(msgspec.Struct, frozen=True, kw_only=True):
    """Node of a broker that is being drained; that it is there is what counts."""

    since_us: NonNegative


class MovePayload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Move of a partition that is asked for; ``error`` says why it has failed, if it has."""

    to: Annotated[list[NonNegative], msgspec.Meta(min_length=1)]
    since_us: NonNegative
    throttle: NonNegative = 0  # bytes a second that its new broker copies at most; 0: any number
    error: str = ""


class TopicPayload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    partitions: dict[NonNegative, Annotated[list[NonNegative], msgspec.Meta(min_length=1)]]
    config: dict[str, str]
    deleted: bool = False  # the topic is gone; only the removal of its nodes is not finished
    moves: dict[NonNegative, MovePayload] = {}


class PartitionState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Node of a partition: who leads it, and how far its log has come.

    ``end`` is an offset that the log had reached on disk, None where a release that did not note it
    led last. ``refused`` says why the leader does not serve the partition, and ``kept_end`` where
    its log ends if that is only too short. ``go_on_at`` is where the log is to go on, once it was
    given up: with what is there of it if ``keep`` is true, else anew. ``replicas`` are the ids of
    the logs that the brokers in ``in_sync`` were known to have, where that is known. ``given_up``
    is the last leader epoch after which that was done: what was lost then may be in logs that other
    brokers have set aside. ``committed`` is an offset up to which all was acknowledged, noted where
    there is more than one replica. ``handed_over`` are the ids of logs that had the lead, or were
    in sync, before the partition moved away from them, the last few, each with a leader epoch that
    comes after all that they have.
    """

    leader: NonNegative
    leader_epoch: NonNegative
    in_sync: list[NonNegative]
    end: NonNegative | None = None
    refused: str | None = None
    kept_end: NonNegative | None = None
    go_on_at: NonNegative | None = None
    keep: bool = False
    replicas: dict[NonNegative, str] = {}
    given_up: NonNegative | None = None
    committed: NonNegative | None = None
    handed_over: dict[str, NonNegative] = {}


class OffsetPayload(msgspec.Struct, frozen=True, kw_only=True, rename={"actor": "by"}):
    offset: NonNegative
    committed_at_us: int
    actor: str
    topic_id: str | None = None
    rewind_epoch: NonNegative = 0
    generation: NonNegative | msgspec.UnsetType = msgspec.UNSET  # read of earlier releases only

    def __post_init__(self) -> None:
        _take_old_name(self)


class LockPayload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    holder: str
    since_us: int
    token: str  # unique to one acquisition
    process: str = ""  # whose session it is, see process_identity; earlier releases did not say


class PlannedTopicPayload(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    ranges: dict[NonNegative, tuple[NonNegative, NonNegative]]  # offsets [start, end)


class MirrorPayload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Node of a mirror: its last round, and what that copies as long as it is not known to be
    over."""

    source: str
    round: NonNegative = 0
    token: NonNegative = 0  # of the round's plan
    topics: dict[str, PlannedTopicPayload] = {}
    changed_us: int


class MirroredTopicPayload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Node of a topic of a mirror, by its name in the source; see ``coordination.mirrors``."""

    id: str
    target: str
    target_id: str
    points: dict[NonNegative, list[tuple[NonNegative, NonNegative]]]
    audited: tuple[NonNegative, NonNegative] | None = None  # since that round, and that time


class OwnerPayload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    host: str
    pid: int
    application: str | None
    since_us: int
    session_timeout_ms: NonNegative  # how long the node can outlive the owner
    token: str  # unique to one run of a query
    process: str = ""  # whose session it is, see process_identity; earlier releases did not say
    consumer: str = ""  # the member of the group, if it is one; else a query or load


class MemberPayload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Node of a consumer that has subscribed: to ``topics``, or to all whose name matches."""

    topics: list[str] = []
    pattern: str | None = None
    assignor: str
    host: str
    pid: int
    since_us: int
    session_timeout_ms: NonNegative


class AssignmentPayload(msgspec.Struct, frozen=True, kw_only=True):
    """Partitions by member and topic; each change is a new generation."""

    generation: NonNegative
    members: dict[str, dict[str, list[NonNegative]]]


class PromisePayload(msgspec.Struct, frozen=True, kw_only=True):
    """Node of a broker: what it prepared under another token may have been dropped."""

    token: str


class RewindEpochPayload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Node of a group's rewinds. Its version changes with every rewind, which fences commits."""

    rewind_epoch: NonNegative = 0
    token: str = ""  # of the last rewind; empty: of a release that gave none
    generation: NonNegative | msgspec.UnsetType = msgspec.UNSET  # read of earlier releases only

    def __post_init__(self) -> None:
        _take_old_name(self)


def _take_old_name(payload: OffsetPayload | RewindEpochPayload) -> None:
    """Earlier releases wrote the rewind epoch as ``generation``; it is never written again."""
    if payload.generation is not msgspec.UNSET:
        msgspec.structs.force_setattr(payload, "rewind_epoch", payload.generation)
        msgspec.structs.force_setattr(payload, "generation", msgspec.UNSET)


class RewindPayload(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename={"reason": "why", "actor": "by", "description": "what"},
):
    positions: dict[str, dict[NonNegative, NonNegative]]
    reason: str
    when_us: int
    actor: str
    description: str = ""  # where to, in words
    token: str = ""  # of its own, as numbers begin anew when a group is deleted


class SchemaReferencePayload(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    subject: str
    version: NonNegative


class SchemaPayload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Node of a schema id: the schema that it stands for. It changes once, when the schema is
    deleted permanently: then ``deleted`` is its content's digest, and the id is given to nothing
    else."""

    schema: str = ""
    references: list[SchemaReferencePayload] = []
    deleted: str = ""


class LastIdPayload(msgspec.Struct, frozen=True, kw_only=True):
    """Node of all schema ids: the highest that was given. It never falls."""

    last_id: NonNegative


class ContentPayload(msgspec.Struct, frozen=True, kw_only=True):
    """Node of a schema's content: the ids that it has, more than one only where ids were
    imported."""

    ids: Annotated[list[NonNegative], msgspec.Meta(min_length=1)]


class SubjectVersionPayload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    version: NonNegative
    id: NonNegative
    deleted: bool = False
    references: list[tuple[str, NonNegative]] = []  # subjects and versions, as its schema names


class SubjectPayload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    versions: list[SubjectVersionPayload] = []  # in rising order
    compatibility: str | None = None
    mode: str | None = None


class SchemaSettingsPayload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings of all subjects that have none of their own."""

    compatibility: str | None = None
    mode: str | None = None


Payload = TypeVar("Payload", bound=msgspec.Struct)


def encode(payload: msgspec.Struct) -> bytes:
    return msgspec.json.encode(payload)


def decode(kind: type[Payload], data: bytes, *, path: str) -> Payload:
    """CorruptNodeError, naming ``path``, for anything but a valid payload of that kind."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as failure:
        raise CorruptNodeError(
            f"The ZooKeeper node {path} does not hold what logbus wrote there ({failure}); it "
            f"starts with {data[:60]!r}. Repair or remove the node by hand."
        ) from failure
