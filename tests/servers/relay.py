"""A detour between clients and a broker, for what a network does to their bytes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

import pytest

from spark_logbus.model import BrokerAddress
from spark_logbus.retry import Deadline
from spark_logbus.wire import connect as connecting


class Relay:
    """Hands on bytes between clients and the broker at ``target``, both ways.

    ``passes`` is called with each piece of an answer before it is handed on, and may wait; False
    drops the piece and ends the connection.
    """

    def __init__(self, target: str, passes: Callable[[bytes], bool]) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._passes = passes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def take_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have the clients of this process come here, whichever broker they mean."""
        connect = connecting._connect

        def by_the_detour(address: BrokerAddress, deadline: Deadline) -> socket.socket:
            return connect(BrokerAddress(address.broker_id, "127.0.0.1", self.port), deadline)

        monkeypatch.setattr(connecting, "_connect", by_the_detour)

    def close(self) -> None:
        """Stops listening, and waits until all connections have ended."""
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            broker = socket.create_connection(self._target)
            thread = threading.Thread(target=self._serve, args=(client, broker), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket, broker: socket.socket) -> None:
        with client, broker:
            ends = (client, broker, lambda _: True)
            requests = threading.Thread(target=self._hand_on, args=ends, daemon=True)
            requests.start()
            self._hand_on(broker, client, self._passes)
            requests.join(60)

    def _hand_on(
        self, source: socket.socket, target: socket.socket, passes: Callable[[bytes], bool]
    ) -> None:
        with contextlib.suppress(OSError):
            while (data := source.recv(1 << 16)) and passes(data):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
