"""Configuration of the clients: one frozen value per component, checked when it is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

from spark_logbus.client.arguments import as_offset_spec
from spark_logbus.config import choice, refuse_unknown
from spark_logbus.errors import ConfigError, InvalidRequestError
from spark_logbus.model import Acks, Compression, Earliest, OffsetSpec, check_name
from spark_logbus.wire.config import ConnectionConfig

if TYPE_CHECKING:  # who neither encrypts nor logs in does not wait for ssl and what is behind it
    from spark_logbus.security.logins import Login
    from spark_logbus.security.profiles import Profile
    from spark_logbus.security.tls import ClientTls, CurrentContext

#: Environment variable with the rack of a client that is not told its own.
RACK_VARIABLE: Final = "LOGBUS_RACK"
# A terabyte, or 34 years in milliseconds: what a thread can still wait for.
_LARGEST: Final = 1 << 40


T = TypeVar("T")

AcksName: TypeAlias = Literal["none", "written", "flushed", "replicated"]
CompressionName: TypeAlias = Literal["none", "lz4", "zstd"]


def names_settings(kind: type[T]) -> type[T]:
    """Have a configuration refuse a setting that it does not have by ConfigError, with the nearest
    one that it has."""
    known = {one.name for one in fields(kind)}  # type: ignore[arg-type]
    made: Callable[..., None] = kind.__init__

    @wraps(made)
    def init(self: T, *args: Any, **settings: Any) -> None:
        if not settings.keys() <= known:
            refuse_unknown(settings, known, where=kind.__name__)
        made(self, *args, **settings)

    type.__setattr__(kind, "__init__", init)
    return kind


def _at_least(owner: object, minimum: int, *keys: str) -> None:
    for key in keys:
        value = getattr(owner, key)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise ConfigError(f"{key} is {value!r}; use a whole number of at least {minimum}.")
        if value > _LARGEST:
            raise ConfigError(f"{key} is {value!r}; use a whole number of at most {_LARGEST}.")


@names_settings
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Settings of a ``Cluster``: its connections, retries and metadata."""

    #: Names this client in the brokers' logs.
    client_id: str = "logbus"
    #: An unanswered request is given up, and its connection closed, after this long.
    request_timeout_ms: int = 30_000
    #: Bound on connecting and shaking hands with one broker.
    connect_timeout_ms: int = 5_000
    #: An operation is repeated after retriable errors for at most this long.
    retry_deadline_ms: int = 60_000
    #: Pause before the first repetition; doubles from one to the next.
    retry_backoff_ms: int = 50
    #: The pause grows no further than this.
    retry_backoff_max_ms: int = 1_000
    #: Leaders are asked for again after this long, even if nothing failed.
    metadata_max_age_ms: int = 300_000
    #: A larger response frame is refused unread. A fetch of 8 MiB can bring at most one record
    #: batch more, which brokers limit to 16 MiB by default; the rest is room for other
    #: choices.
    max_response_bytes: int = 256 << 20
    #: Use a broker's UNIX socket when it is on this machine: a quarter of loopback TCP's cost.
    local_sockets: bool = True
    #: Connections kept open per broker between requests, one per thread that calls at once.
    idle_connections: int = 4
    #: Where this client stands: readers ask replicas of the same rack before others. None takes
    #: the environment's ``LOGBUS_RACK``; brokers on this machine come first without it.
    rack: str | None = None
    #: Encrypt connections, and believe only brokers whose certificates prove who they are; none
    #: are not encrypted. A broker's UNIX socket never is.
    tls: ClientTls | None = None
    #: Proves to brokers who this client is; none says nothing.
    login: Login | None = None

    def __post_init__(self) -> None:
        _at_least(
            self, 1, "request_timeout_ms", "connect_timeout_ms", "retry_deadline_ms",
            "retry_backoff_ms", "metadata_max_age_ms",
        )  # fmt: skip
        _at_least(self, self.retry_backoff_ms, "retry_backoff_max_ms")
        _at_least(self, 64 << 10, "max_response_bytes")
        _at_least(self, 0, "idle_connections")
        if self.rack is not None and (not isinstance(self.rack, str) or not self.rack.strip()):
            raise ConfigError(f"rack is {self.rack!r}; use the name of a rack, as text.")

    def with_profile(self, profile: Profile) -> ClientConfig:
        """Returns these settings, with what a profile says of TLS and login where they say
        nothing."""
        return replace(self, tls=self.tls or profile.tls, login=self.login or profile.login)

    @property
    def shows_certificate(self) -> bool:
        """True if brokers know this client by a certificate, where they ask for one."""
        return self.tls is not None and self.tls.certificate is not None

    @property
    def uses_local_sockets(self) -> bool:
        """True if it connects over UNIX sockets where it can. A client whom its certificate names
        does not: it is not shown there, and brokers would know somebody else."""
        return self.local_sockets and (self.login is not None or not self.shows_certificate)

    @property
    def connections(self) -> ConnectionConfig:
        """The part that is about connections."""
        return ConnectionConfig(
            client_id=self.client_id,
            connect_timeout_ms=self.connect_timeout_ms,
            max_response_bytes=self.max_response_bytes,
            local_sockets=self.uses_local_sockets,
            idle_connections=self.idle_connections,
            tls=None if self.tls is None else _contexts(self.tls),
            login=self.login,
        )


def _contexts(tls: ClientTls) -> CurrentContext:
    from spark_logbus.security.tls import of_client

    return of_client(tls)


@names_settings
@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """Settings of a ``Producer``: record batches, requests and their bounds."""

    #: What a broker has done before it acknowledges; none is ``replicated`` for topics that have
    #: more than one replica, else ``flushed``.
    acks: Acks | AcksName | None = None
    #: Number the record batches, so that a retry after a lost answer does not append them
    #: twice. Without effect with acks none, which are never retried.
    idempotent: bool = True
    #: A record batch that is not full waits this long for more records.
    linger_ms: int = 5
    #: A record batch of single records is sent at this size. Larger ones cost less to read.
    batch_bytes: int = 1 << 20
    #: ``send_arrow`` cuts what it is given into record batches of about this size.
    arrow_piece_bytes: int = 4 << 20
    #: Arrow's own buffer compression; skipped for record batches of fewer than 50 records.
    compression: Compression | CompressionName = Compression.NONE
    #: Memory for records that are not acknowledged yet.
    buffer_bytes: int = 64 << 20
    #: A send waits this long for room in the buffer, or for the topic's metadata.
    max_block_ms: int = 60_000
    #: Retries of a record batch end this long after its first record was handed over.
    delivery_timeout_ms: int = 120_000
    #: Unanswered append requests per broker. Numbers keep a partition's order, also when some of
    #: them fail; without ``idempotent`` it is one at a time per partition.
    max_in_flight: int = 5
    #: An append request is filled up to this size, or the broker's frame limit if smaller.
    max_request_bytes: int = 16 << 20

    def __post_init__(self) -> None:
        if self.acks is not None:
            object.__setattr__(self, "acks", choice(Acks, self.acks, key="acks"))
        compression = choice(Compression, self.compression, key="compression")
        object.__setattr__(self, "compression", compression)
        if not isinstance(self.idempotent, bool):
            raise ConfigError(f"idempotent is {self.idempotent!r}; use True or False.")
        _at_least(self, 0, "linger_ms", "max_block_ms")
        _at_least(
            self, 1, "delivery_timeout_ms", "max_in_flight", "batch_bytes", "arrow_piece_bytes",
            "max_request_bytes",
        )  # fmt: skip
        _at_least(self, self.batch_bytes, "buffer_bytes")


@names_settings
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Settings of a ``Consumer``: its group, and the size of its fetches."""

    #: Consumer group whose committed offsets (in ZooKeeper) are read and written.
    group: str | None = None
    #: Where group offsets are; none takes the address that the cluster was found by, else
    #: ``LOGBUS_ZOOKEEPER`` or the local default.
    zookeeper: str | None = None
    #: Silence after which ZooKeeper gives what a consumer that subscribed has to the others.
    session_timeout_ms: int = 10_000
    #: A consumer that subscribed and does not ask for records for so long gives its partitions to
    #: the others, and gets its share again when it asks.
    max_poll_interval_ms: int = 300_000
    #: The rule by which those who subscribe share partitions; all members need the same. Range
    #: gives each a run of a topic's, sticky moves as few as an even spread allows.
    assignor: Literal["range", "sticky"] = "range"
    #: A consumer that subscribed commits what it has handed out about so often, when it is asked
    #: for more; none leaves it to ``commit``.
    auto_commit_ms: int | None = 5_000
    #: Where to begin in a partition without a position and without a committed offset.
    start: OffsetSpec | str = field(default_factory=Earliest)
    #: What to do when the position is no longer (or not yet) in the log.
    out_of_range: Literal["error", "earliest", "latest"] = "error"
    #: Values of topics with a schema are read under that version of their subject; none takes the
    #: latest when a topic is met.
    schema_version: int | None = None
    #: A value that is none of its schema raises; or its record is left out.
    on_undecodable: Literal["fail", "drop"] = "fail"
    #: Bytes that one fetch request may bring, over all partitions of a leader.
    fetch_bytes: int = 8 << 20
    #: Bytes that one partition may bring per fetch request, so that none starves the others.
    partition_fetch_bytes: int = 4 << 20
    #: Bytes of records, as they are decoded, that one ``poll_arrow`` hands out; the rest comes at
    #: the next. A record batch alone may have more: up to 256 MiB by its format, and 1 GiB where
    #: Avro values become columns.
    max_decoded_bytes: int = 64 << 20
    #: A broker answers a waiting fetch when so many bytes are there.
    min_bytes: int = 1
    #: A waiting fetch is answered after this long, whatever is there.
    max_wait_ms: int = 500

    def __post_init__(self) -> None:
        if self.group is not None:
            check_name("consumer group", self.group)
        try:
            object.__setattr__(self, "start", as_offset_spec("start", self.start))
        except InvalidRequestError as error:
            raise ConfigError(error.message) from error
        if self.out_of_range not in ("error", "earliest", "latest"):
            raise ConfigError(
                f"out_of_range is {self.out_of_range!r}; use 'error', 'earliest' or 'latest'."
            )
        if self.on_undecodable not in ("fail", "drop"):
            raise ConfigError(f"on_undecodable is {self.on_undecodable!r}; use 'fail' or 'drop'.")
        if self.assignor not in ("range", "sticky"):
            raise ConfigError(f"assignor is {self.assignor!r}; use 'range' or 'sticky'.")
        _at_least(
            self, 1, "fetch_bytes", "partition_fetch_bytes", "session_timeout_ms",
            "max_poll_interval_ms", "max_decoded_bytes",
        )  # fmt: skip
        _at_least(self, 0, "min_bytes", "max_wait_ms")
        if self.auto_commit_ms is not None:
            _at_least(self, 0, "auto_commit_ms")
        if self.schema_version is not None:
            _at_least(self, 1, "schema_version")
