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
    "max_connections_per_address": 1_000_000,
    "max_connections_per_process": 1_000_000,
    "max_frame_bytes": _FRAME,
    "max_header_bytes": 64 * MiB,
    "max_handshake_bytes": _FRAME,
    "max_buffered_bytes": 1 << 39,
    "max_buffered_bytes_per_peer": 1 << 39,
    "max_in_flight": 1_000_000,
    "max_partitions_per_request": 1_000_000,
    "max_fetch_bytes": _FRAME,
    "max_wait_ms": _DAY_MS,
    "stall_timeout_ms": _DAY_MS,
    "frame_timeout_ms": _DAY_MS,
    "min_receive_bytes_per_s": 1 << 30,
    "idle_timeout_ms": 7 * _DAY_MS,
    "peer_timeout_ms": _DAY_MS,
    "drain_timeout_ms": _DAY_MS,
}
# The most that a request takes as values, in bytes a byte of its header: names of one letter.
DECODED = 30
_TOPIC_LIMITS = {"max_partitions_per_topic": 10_000, "max_partitions_per_broker": 1_000_000}
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
    #: Those of one IP address, a quarter of all by default, so that one client that forgets to
    #: close cannot shut out the others. A Spark executor holds two or three for each of its
    #: cores, so this is room for a machine of 300. All UNIX sockets together count as one address.
    max_connections_per_address: int = 1_024
    #: UNIX sockets of one process, a quarter of all by default, for the same reason. A client that
    #: is turned away at the UNIX socket goes on over TCP, so nobody is shut out by it.
    max_connections_per_process: int = 256
    #: A request frame; holds the largest record batch and lets one append carry several.
    max_frame_bytes: int = 64 * MiB
    #: A frame before the handshake; a handshake takes under 200 bytes.
    max_handshake_bytes: int = 4_096
    #: The header of a request: holds ``max_partitions_per_request`` with names of 100 letters.
    max_header_bytes: int = 2 * MiB
    #: Memory for requests above 16 KiB that are coming in, over all connections, taken as their
    #: bytes come. A quarter is for requests up to 1 MiB, a producer's usual ones, so that they do
    #: not wait for larger ones. As much as the largest request can take, with a full header 124
    #: MiB, is the last resort: one request at a time gets it that would otherwise wait, so that
    #: none waits for ever. The rest all larger requests share. Requests and answers that wait may
    #: take max_buffered_bytes again, then each connection gets one at a time.
    max_buffered_bytes: int = 256 * MiB
    #: What the requests of one peer hold of that at most, half of it those up to 1 MiB. A peer is
    #: an IP address, or a process on this machine. With a quarter of what there is, three do not
    #: get in a fourth one's way, and 16 of a producer's usual requests are more than threads
    #: receive at a time; what goes beyond comes one request after the other.
    max_buffered_bytes_per_peer: int = 32 * MiB
    #: Requests of one connection that wait for an answer; a producer keeps 5 by default.
    max_in_flight: int = 16
    #: Partitions (or topics) that one request names: as many as a topic can have.
    max_partitions_per_request: int = 10_000
    #: All record batches that one fetch returns; a client's larger wish is cut to this.
    max_fetch_bytes: int = 64 * MiB
    #: The longest a fetch or an append may wait, whatever it asks for.
    max_wait_ms: int = 60_000
    #: A connection ends that has not shaken hands for this long, or sends no further byte in the
    #: middle of a frame.
    stall_timeout_ms: int = 30_000
    #: A request that takes longer than this from its first byte to its last ends its connection.
    #: Its producer has given up by then (delivery_timeout_ms), and it holds memory.
    frame_timeout_ms: int = 120_000
    #: A request above 16 KiB that comes in more slowly than this, over stall_timeout_ms, ends its
    #: connection. At this rate a producer's usual request of 1 MiB would take longer than
    #: frame_timeout_ms, so nobody loses by it who could have got through; 70 kbit/s will do.
    min_receive_bytes_per_s: int = 8_192
    #: A connection ends on which no byte has moved either way for this long. Clients connect
    #: again when they need to. Kafka's connections.max.idle.ms has the same default.
    idle_timeout_ms: int = 600_000
    #: A TCP connection ends whose other machine does not confirm what was sent, or takes nothing
    #: of it, for this long (Linux: TCP_USER_TIMEOUT). Long enough for a Spark task that pauses.
    peer_timeout_ms: int = 300_000
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
        largest = self.largest_request_bytes
        require(
            largest <= self.max_buffered_bytes,
            f"max_buffered_bytes ({self.max_buffered_bytes}) must hold the largest request, "
            f"{largest} bytes: max_frame_bytes ({self.max_frame_bytes}) and {DECODED} times "
            f"max_header_bytes ({self.max_header_bytes}), which is what a header can take decoded.",
        )

    @property
    def largest_request_bytes(self) -> int:
        """What one request takes at most: its frame, and its header decoded."""
        return self.max_frame_bytes + DECODED * self.max_header_bytes


@dataclass(frozen=True, slots=True)
class CompactionConfig:
    """Compaction of all logs by this broker; when a log is due, its topic says."""

    #: How often to look for a log that is due.
    check_interval_ms: int = 15_000
    #: What the compacting process remembers of keys at a time: 500,000 keys of 50 bytes. A log
    #: with more new keys takes several rounds.
    map_bytes: int = 128 * MiB
    #: A compacting process that gets no further for this long is ended.
    stall_timeout_ms: int = 600_000

    def __post_init__(self) -> None:
        for name, least in (("check_interval_ms", 10), ("map_bytes", 1), ("stall_timeout_ms", 1)):
            value = getattr(self, name)
            require(least <= value <= 1 << 40, f"{name} must be {least} to {1 << 40}, got {value}.")


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
    #: Of a topic that is created or enlarged. Each partition costs its leader a directory and an
    #: open file, and each producer and consumer some memory.
    max_partitions_per_topic: int = 1_000
    #: Over all topics, for each broker that is alive when a topic is created or enlarged: what the
    #: broker asks of the operating system beside its connections is 4,096 open files.
    max_partitions_per_broker: int = 3_500
    network: NetworkConfig = NetworkConfig()
    log: LogConfig = LogConfig()
    compaction: CompactionConfig = CompactionConfig()
    metrics: MetricsConfig = MetricsConfig()
    logging: LoggingConfig = LoggingConfig()

    def __post_init__(self) -> None:
        require(self.id >= 0, f"id must be 0 or more, got {self.id}.")
        require(0 <= self.port < 65_536, f"port must be 0 to 65535, got {self.port}.")
        require(bool(self.host), "host must not be empty; 0.0.0.0 listens on all addresses.")
        for name, limit in _TOPIC_LIMITS.items():
            value = getattr(self, name)
            require(0 < value <= limit, f"{name} must be 1 to {limit}, got {value}.")
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
    "compaction": CompactionConfig,
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
