"""The configuration of a broker, with the reason for each default."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spark_logbus.config import build, load_toml, require
from spark_logbus.errors import ConfigError, InvalidNameError
from spark_logbus.log import LogConfig
from spark_logbus.model import check_name
from spark_logbus.network.config import NetworkConfig
from spark_logbus.security.principals import Principal
from spark_logbus.security.tls import ServerTls

MiB = 1 << 20
_DAY_MS = 24 * 3600 * 1000
_TOPIC_LIMITS = {"max_partitions_per_topic": 10_000, "max_partitions_per_broker": 1_000_000}
_LOG_FORMATS = ("text", "json")
_LOG_LEVELS = ("debug", "info", "warning", "error")
_GATEWAY_LIMITS = {
    "max_sessions": 100_000,
    "max_sessions_per_principal": 100_000,
    "login_timeout_ms": 600_000,
}
_SESSION_MS = range(500, _DAY_MS + 1)

_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class CompactionConfig:
    """Compaction of all logs by this broker, one at a time, in a process of its own. When a log
    is due, its topic says."""

    #: How often to look for a log that is due.
    check_interval_ms: int = 15_000
    #: What the compacting process remembers of keys at a time: 500,000 keys of 50 bytes. A log
    #: with more new keys takes several rounds. A record batch that takes more than half of it
    #: decoded is not compacted.
    map_bytes: int = 128 * MiB
    #: A compacting process that gets no further for this long is ended.
    stall_timeout_ms: int = 600_000

    def __post_init__(self) -> None:
        for name, least in (("check_interval_ms", 10), ("map_bytes", 1), ("stall_timeout_ms", 1)):
            value = getattr(self, name)
            require(least <= value <= 1 << 40, f"{name} must be {least} to {1 << 40}, got {value}.")


@dataclass(frozen=True, slots=True)
class MovesConfig:
    """Partitions that move to this broker, and what is left here of those that moved away."""

    #: The old log of a partition that moved away is kept under another name, which nobody
    #: reads, and deleted so long after. If the new disk fails soon after the move, the records
    #: from before the move are still here; those appended since are not.
    retention_ms: int = _HOUR_MS
    #: What a partition that moves here leaves free on the disk: a move that would take of it is
    #: given up, and the partition stays where it is.
    reserve_bytes: int = 1024 * MiB

    def __post_init__(self) -> None:
        for name in ("retention_ms", "reserve_bytes"):
            value = getattr(self, name)
            require(0 <= value <= 1 << 50, f"{name} must be 0 to {1 << 50}, got {value}.")


@dataclass(frozen=True, slots=True)
class ReplicationConfig:
    """Partitions with several replicas."""

    #: A follower that has not had all that this leader has for so long, or lacks something staged
    #: for which an atomic write waits so long, is in sync no more, and nobody waits for it until it
    #: has caught up. One whose broker is gone is dropped at once.
    lag_max_ms: int = 10_000
    #: A partition goes back to its preferred leader when that has been in sync for so long: after a
    #: restart it would otherwise lead nothing.
    preferred_after_ms: int = 300_000

    def __post_init__(self) -> None:
        for name, least in (("lag_max_ms", 100), ("preferred_after_ms", 0)):
            value = getattr(self, name)
            require(least <= value <= 1 << 40, f"{name} must be {least} to {1 << 40}, got {value}.")


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """The HTTP server of /metrics, /healthz and /livez."""

    #: On by default: it costs nothing while nobody asks, and whoever looks for it is in trouble.
    enabled: bool = True
    #: Topic names are shown, and without ``authenticate`` nobody is asked for a password: only
    #: this machine, by default.
    host: str = "127.0.0.1"
    #: 0 takes a free port, so that brokers on one machine never collide, and keeps it over
    #: restarts. The broker logs it and writes it to ``<data_dir>/metrics.port``. Set it where
    #: Prometheus is to find it.
    port: int = 0
    #: Series for each partition; a broker with many thousands may be better off without.
    partitions: bool = True
    #: Encrypt with the certificate of ``[tls]``; a client may show one, and need not.
    tls: bool = False
    #: Show /metrics to who may DESCRIBE the cluster, by HTTP Basic or a certificate. /healthz and
    #: /livez, which load balancers ask, stay open.
    authenticate: bool = False

    def __post_init__(self) -> None:
        require(0 <= self.port < 65_536, f"port must be 0 to 65535, got {self.port}.")
        require(
            self.tls or not self.authenticate,
            "authenticate is true and tls is false: passwords would cross the network as they are.",
        )
        require(bool(self.host), "host must not be empty; 0.0.0.0 listens on all addresses.")


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """A port on which connections are encrypted. Off as long as no certificate is named; the files
    are read anew when they change, for connections from then on."""

    #: The broker's certificate, followed by those that lead to an authority that clients trust
    #: (PEM). It names ``advertised_host``, or ``host``.
    certificate: Path | None = None
    #: The private key of the certificate, without a password; keep it from everybody else.
    key: Path | None = None
    #: 0 takes a free port at each start.
    port: int = 9292
    #: Take no connection without encryption, but from this machine over the UNIX socket.
    only: bool = False
    #: The authorities that sign certificates of clients and of other brokers (PEM).
    client_ca: Path | None = None
    #: ``none``, ``optional`` or ``required``: whether a client shows a certificate of its own.
    client_certificates: str = "none"

    def __post_init__(self) -> None:
        require(0 <= self.port < 65_536, f"port must be 0 to 65535, got {self.port}.")
        require(
            (self.certificate is None) == (self.key is None),
            "certificate and key are given together, or neither.",
        )
        require(
            self.certificate is not None or not self.only,
            "only is true, but there is no certificate to encrypt with.",
        )
        _ = self.server  # has its own requirements

    @property
    def server(self) -> ServerTls | None:
        """Files with which connections are encrypted; None where they are not."""
        if self.certificate is None or self.key is None:
            return None
        return ServerTls(
            certificate=self.certificate,
            key=self.key,
            client_ca=self.client_ca,
            client_certificates=self.client_certificates,
        )


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """Rules about who may connect, and what they may do.

    All off by default: whoever reaches a port may do everything.
    """

    #: Take nobody who has not proved who it is: as a user with a password, by a token or a
    #: certificate, or by the operating system over the UNIX socket.
    authenticate: bool = False
    #: With ``authenticate``: take those who prove nothing, too, as ``anonymous``. This is for the
    #: time in which a cluster is secured broker by broker, and they may do everything, as a broker
    #: that is not secured yet may. So it goes with no ``authorize``.
    anonymous: bool = False
    #: Let principals do what access rules allow (``logbus acls``), and nothing else.
    authorize: bool = False
    #: Principals whom no rule binds, such as ``["user:admin"]``. Whoever runs the broker is one,
    #: over its UNIX socket.
    super_principals: list[str] = field(default_factory=list)
    #: So long a token is good that Spark's driver hands to its tasks: for a batch job, from when it
    #: was planned to its last task. Whoever steals one may use it for as long, for the topics of
    #: the job, until its owner may not any more.
    token_max_ms: int = _DAY_MS // 2

    def __post_init__(self) -> None:
        require(
            self.authenticate or not self.authorize,
            "authorize is true and authenticate is false: rules are about those who are known.",
        )
        require(
            self.authenticate or not self.anonymous,
            "anonymous is true and authenticate is false: nobody is asked, so all are anonymous.",
        )
        require(
            not (self.anonymous and self.authorize),
            "anonymous and authorize are both true: who proves nothing may be a broker that is not "
            "secured yet, so no rule could bind it. Take anonymous out once all brokers are "
            "secured.",
        )
        for each in self.super_principals:
            Principal.parse(each)
        require(
            1_000 <= self.token_max_ms <= _DAY_MS,
            f"token_max_ms must be 1000 to {_DAY_MS}, got {self.token_max_ms}.",
        )


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """A port for clients' sessions with ZooKeeper, at which access rules hold. Encrypted as [tls]
    says, and for those only who have logged in."""

    #: None: there is no gateway; 0 takes a free port at each start.
    port: int | None = None
    #: Sessions at a time. Each takes a connection to ZooKeeper, which allows 60 from one address as
    #: long as its maxClientCnxns says nothing else.
    max_sessions: int = 2_000
    #: Sessions of one principal at a time.
    max_sessions_per_principal: int = 500
    #: Time for a client to encrypt its connection, ask for its session, and log in.
    login_timeout_ms: int = 10_000

    def __post_init__(self) -> None:
        require(
            self.port is None or 0 <= self.port < 65_536,
            f"port must be 0 to 65535, got {self.port}.",
        )
        for name, most in _GATEWAY_LIMITS.items():
            value = getattr(self, name)
            require(0 < value <= most, f"{name} must be 1 to {most}, got {value}.")


@dataclass(frozen=True, slots=True)
class LoggingConfig:
    """The broker's log, on standard error."""

    #: ``text``: for people; ``json``: one object a line, for collectors of logs. The option
    #: ``--log-format`` overrides it.
    format: str = "text"
    #: ``debug``, ``info``, ``warning`` or ``error``.
    level: str = "info"
    #: Where the audit log goes: who was refused, who failed to log in, who administers what; one
    #: JSON object a line. It is begun anew where the file is moved away. By default it is among the
    #: other lines, whatever the level.
    audit_file: Path | None = None

    def __post_init__(self) -> None:
        for name, known in (("format", _LOG_FORMATS), ("level", _LOG_LEVELS)):
            value = getattr(self, name)
            require(value in known, f"{name} is {value!r}; use one of {', '.join(known)}.")


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """One broker process."""

    #: Unique in the cluster, and never changed.
    id: int
    #: A directory of this broker's own on a local disk. It belongs to the id from its first start
    #: on, when it must be empty (but for ``lost+found`` and names that begin with a dot) or not
    #: there yet.
    data_dir: Path
    #: The address to listen on; 0.0.0.0 is all.
    host: str = "127.0.0.1"
    #: 0 takes a free port, and keeps it over restarts.
    port: int = 9192
    #: What clients connect to, when it differs from ``host``; needed when that is
    #: 0.0.0.0.
    advertised_host: str | None = None
    #: Where the broker stands: what fails together, such as a rack or an availability zone, has the
    #: same name. Replicas of a partition are on different racks while there are enough.
    rack: str | None = None
    #: The ensemble, with one chroot at the end.
    zookeeper: str = "localhost:2181/logbus"
    #: A silent broker counts as gone after this: shorter notices sooner, longer forgives longer
    #: pauses. A broker that paused for longer asks ZooKeeper for its id before it takes appends
    #: again.
    zookeeper_session_ms: int = 10_000
    #: Of a topic that is created or enlarged. Each partition costs its leader a directory and an
    #: open file, and each producer and consumer some memory.
    max_partitions_per_topic: int = 1_000
    #: Over all topics, each replica counted, for each broker that is alive when a topic is created
    #: or enlarged: the broker asks the operating system for 4,096 open files beside its
    #: connections.
    max_partitions_per_broker: int = 3_500
    #: A writer that has committed nothing for so long is forgotten, with the version that it
    #: committed last: a streaming query that is resumed later may write its last micro-batch twice.
    writer_retention_ms: int = 180 * 24 * 3600 * 1000
    network: NetworkConfig = NetworkConfig()
    #: A table of its own: connections that are encrypted.
    tls: TlsConfig = TlsConfig()
    #: A table of its own: who is let in, and what that one may do.
    security: SecurityConfig = field(default_factory=SecurityConfig)
    #: A table of its own: a port for clients' sessions with ZooKeeper.
    gateway: GatewayConfig = GatewayConfig()
    log: LogConfig = LogConfig()
    compaction: CompactionConfig = CompactionConfig()
    moves: MovesConfig = MovesConfig()
    replication: ReplicationConfig = ReplicationConfig()
    metrics: MetricsConfig = MetricsConfig()
    logging: LoggingConfig = LoggingConfig()

    def __post_init__(self) -> None:
        require(self.id >= 0, f"id must be 0 or more, got {self.id}.")
        require(0 <= self.port < 65_536, f"port must be 0 to 65535, got {self.port}.")
        require(bool(self.host), "host must not be empty; 0.0.0.0 listens on all addresses.")
        if self.rack is not None:
            try:
                check_name("rack", self.rack)
            except InvalidNameError as error:
                raise ConfigError(f"rack: {error.message}") from error
        for name, limit in _TOPIC_LIMITS.items():
            value = getattr(self, name)
            require(0 < value <= limit, f"{name} must be 1 to {limit}, got {value}.")
        require(
            self.writer_retention_ms >= _HOUR_MS,
            f"writer_retention_ms must be at least {_HOUR_MS}, got {self.writer_retention_ms}.",
        )
        require(
            self.zookeeper_session_ms in _SESSION_MS,
            f"zookeeper_session_ms must be {_SESSION_MS.start} to {_SESSION_MS.stop - 1}, "
            f"got {self.zookeeper_session_ms}.",
        )
        require(
            self.gateway.port is None
            or (self.security.authenticate and self.tls.server is not None),
            "[gateway] has a port, and needs [security] with authenticate = true, and [tls] with "
            "a certificate.",
        )
        require(
            self.log.max_record_batch_bytes < self.network.max_frame_bytes,
            f"max_record_batch_bytes ({self.log.max_record_batch_bytes}) must be below "
            f"max_frame_bytes ({self.network.max_frame_bytes}).",
        )
        require(
            self.tls.server is not None or not self.metrics.tls,
            "tls is true in [metrics], but [tls] names no certificate to encrypt with.",
        )
        require(
            self.security.authenticate or not self.metrics.authenticate,
            "authenticate is true in [metrics] and false in [security]: this broker knows nobody.",
        )


_TABLES: dict[str, type[Any]] = {
    "network": NetworkConfig,
    "tls": TlsConfig,
    "security": SecurityConfig,
    "gateway": GatewayConfig,
    "log": LogConfig,
    "compaction": CompactionConfig,
    "moves": MovesConfig,
    "replication": ReplicationConfig,
    "metrics": MetricsConfig,
    "logging": LoggingConfig,
}


def load_broker_config(path: Path) -> BrokerConfig:
    """Read a TOML file: [broker], and a table for each of ``_TABLES`` (see conf/broker.toml). Files
    in [tls] are looked for beside it."""
    tables = load_toml(path, ("broker", *_TABLES))
    broker = tables.get("broker", {})
    for key in _TABLES:
        require(key not in broker, f"{key!r} is a table of its own, [{key}], in {path}.")
    parts = {
        key: build(kind, tables.get(key, {}), where=f"[{key}] of {path}")
        for key, kind in _TABLES.items()
    }
    parts["tls"] = _beside(parts["tls"], path.absolute().parent)
    return build(BrokerConfig, {**broker, **parts}, where=f"[broker] of {path}")


def _beside(tls: TlsConfig, directory: Path) -> TlsConfig:
    paths = {key: getattr(tls, key) for key in ("certificate", "key", "client_ca")}
    return replace(
        tls, **{key: directory / path for key, path in paths.items() if path is not None}
    )
