"""What a broker can be told, with the reason for each default."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_logbus.config import build, load_toml, require
from spark_logbus.log import LogConfig

MiB = 1 << 20
_DAY_MS = 24 * 3600 * 1000
_FRAME = (1 << 31) - 1  # a frame's length has 32 bits, and some is needed beside the payload

# The largest value of each key of [network]; the smallest is 1.
_NETWORK_LIMITS = {
    "threads": 1_024,
    "max_connections": 1_000_000,
    "max_frame_bytes": _FRAME,
    "max_handshake_bytes": _FRAME,
    "max_in_flight": 1_000_000,
    "max_fetch_bytes": _FRAME,
    "max_wait_ms": _DAY_MS,
    "stall_timeout_ms": _DAY_MS,
    "drain_timeout_ms": _DAY_MS,
}
_LOG_FORMATS = ("text", "json")
_LOG_LEVELS = ("debug", "info", "warning", "error")
_SESSION_MS = range(500, _DAY_MS + 1)


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Sockets and their limits."""

    #: Threads that serve requests. Each is in a system call most of the time, so more than cores.
    threads: int = 8
    #: Serve clients on the same machine over a UNIX socket too: a quarter of loopback TCP's cost.
    local_socket: bool = True
    #: All connections together; each costs about 3 KiB and one file descriptor.
    max_connections: int = 4_096
    #: A request frame; holds the largest record batch and lets one append carry several.
    max_frame_bytes: int = 64 * MiB
    #: A frame before the handshake; a handshake takes under 200 bytes.
    max_handshake_bytes: int = 4_096
    #: Requests of one connection that wait for an answer; a producer keeps 5 by default.
    max_in_flight: int = 16
    #: All record batches that one fetch returns; a client's larger wish is cut to this.
    max_fetch_bytes: int = 64 * MiB
    #: The longest a fetch or an append may wait, whatever it asks for.
    max_wait_ms: int = 60_000
    #: A connection ends that has not shaken hands for this long, or sends no further byte in the
    #: middle of a frame.
    stall_timeout_ms: int = 30_000
    #: How long a stopping broker waits for requests under way.
    drain_timeout_ms: int = 5_000

    def __post_init__(self) -> None:
        for name, limit in _NETWORK_LIMITS.items():
            value = getattr(self, name)
            require(0 < value <= limit, f"{name} must be 1 to {limit}, got {value}.")
        require(
            self.max_handshake_bytes <= self.max_frame_bytes,
            f"max_handshake_bytes ({self.max_handshake_bytes}) must not exceed max_frame_bytes "
            f"({self.max_frame_bytes}).",
        )


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """The HTTP server of /metrics, /healthz and /livez. It is on by default: it costs nothing
    while nobody asks, and who looks for it is in trouble already."""

    enabled: bool = True
    #: There is no password, and topic names are shown: only this machine, unless told otherwise.
    host: str = "127.0.0.1"
    #: 0 takes a free port, so that brokers on one machine never collide, and keeps it over
    #: restarts. The broker logs it and writes it to <data_dir>/metrics.port.
    port: int = 0
    #: Series for each partition; a broker with many thousands may be better off without.
    partitions: bool = True

    def __post_init__(self) -> None:
        require(0 <= self.port < 65_536, f"port must be 0 to 65535, got {self.port}.")
        require(bool(self.host), "host must not be empty; 0.0.0.0 listens on all addresses.")


@dataclass(frozen=True, slots=True)
class LoggingConfig:
    """What the broker writes to standard error."""

    #: text: for people; json: one object a line, for collectors of logs.
    format: str = "text"
    level: str = "info"

    def __post_init__(self) -> None:
        for name, known in (("format", _LOG_FORMATS), ("level", _LOG_LEVELS)):
            value = getattr(self, name)
            require(value in known, f"{name} is {value!r}; use one of {', '.join(known)}.")


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """One broker process. ``id`` is unique in the cluster; ``port`` 0 takes a free port and
    keeps it over restarts."""

    id: int
    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 9192
    #: What clients are told to connect to, when it differs from ``host``.
    advertised_host: str | None = None
    zookeeper: str = "localhost:2181/logbus"
    zookeeper_session_ms: int = 10_000
    network: NetworkConfig = NetworkConfig()
    log: LogConfig = LogConfig()
    metrics: MetricsConfig = MetricsConfig()
    logging: LoggingConfig = LoggingConfig()

    def __post_init__(self) -> None:
        require(self.id >= 0, f"id must be 0 or more, got {self.id}.")
        require(0 <= self.port < 65_536, f"port must be 0 to 65535, got {self.port}.")
        require(bool(self.host), "host must not be empty; 0.0.0.0 listens on all addresses.")
        require(
            self.zookeeper_session_ms in _SESSION_MS,
            f"zookeeper_session_ms must be {_SESSION_MS.start} to {_SESSION_MS.stop - 1}, "
            f"got {self.zookeeper_session_ms}.",
        )
        require(
            self.log.max_record_batch_bytes < self.network.max_frame_bytes,
            f"max_record_batch_bytes ({self.log.max_record_batch_bytes}) must be below "
            f"max_frame_bytes ({self.network.max_frame_bytes}).",
        )


_TABLES: dict[str, type[Any]] = {
    "network": NetworkConfig,
    "log": LogConfig,
    "metrics": MetricsConfig,
    "logging": LoggingConfig,
}


def load_broker_config(path: Path) -> BrokerConfig:
    """Read a TOML file: [broker], and a table for each of ``_TABLES`` (see conf/broker.toml)."""
    tables = load_toml(path, ("broker", *_TABLES))
    broker = tables.get("broker", {})
    for key in _TABLES:
        require(key not in broker, f"{key!r} is a table of its own, [{key}], in {path}.")
    parts = {
        key: build(kind, tables.get(key, {}), where=f"[{key}] of {path}")
        for key, kind in _TABLES.items()
    }
    return build(BrokerConfig, {**broker, **parts}, where=f"[broker] of {path}")
