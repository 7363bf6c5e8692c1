"""Limits on sockets, threads and memory, with the reason for each default."""

from __future__ import annotations

from dataclasses import dataclass

from spark_logbus.config import require

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


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Sockets and their limits."""

    #: Threads that serve requests. Each is in a system call most of the time, so more than cores.
    threads: int = 8
    #: Serve clients on the same machine over a UNIX socket too (Linux): it costs a quarter of
    #: loopback TCP, and lets them map segment files.
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
    #: The most that requests of one peer hold of that, half of it those up to 1 MiB. A peer is
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
        """Memory that one request takes at most, for its frame and its decoded header."""
        return self.max_frame_bytes + DECODED * self.max_header_bytes
