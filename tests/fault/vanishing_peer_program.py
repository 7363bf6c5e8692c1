"""Fails unless a network notices that a peer with data under way has vanished.

Runs in a network namespace of its own, as it switches the loopback interface on and off.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from spark_logbus.clock import SystemClock
from spark_logbus.log import OS_FILES, LogSlice
from spark_logbus.network import Network, Response
from spark_logbus.network.config import NetworkConfig
from spark_logbus.protocol import Api, DeleteTopicRequest, DeleteTopicResponse, encode_response
from tests.helpers import wait_until
from tests.servers.wire import Wire

SIZE = 64 << 20


def link(state: str) -> None:
    subprocess.run(["ip", "link", "set", "lo", state], check=True)


def main() -> None:
    path = Path(sys.argv[1]) / "segment"
    path.write_bytes(bytes(SIZE))
    link("up")
    config = NetworkConfig(threads=2, local_socket=False, peer_timeout_ms=2_000)
    network = Network(host="127.0.0.1", port=0, config=config, clock=SystemClock())
    header = encode_response(DeleteTopicResponse())

    def handle(connection: object, _: object) -> Response:
        connection.handshake_done()  # type: ignore[attr-defined]
        return Response(header, [LogSlice(OS_FILES.open_read_only(path), 0, SIZE)])

    network.start(handle)
    wire = Wire.to(f"127.0.0.1:{network.port}", shake_hands=False)
    wire.send(Api.DELETE_TOPIC, DeleteTopicRequest("t"))
    wire.sock.recv(1 << 20)
    link("down")
    # Retransmission by itself would go on for a quarter of an hour.
    wait_until(lambda: network.connection_count == 0)
    wire.sock.close()
    network.stop_accepting()
    network.stop()


if __name__ == "__main__":
    main()
