"""A crowd of clients, while ZooKeeper is there and does not answer."""

from __future__ import annotations

import http.client
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from tests.helpers import frozen, wait_until
from tests.integration.schemas.registry.texts import INT
from tests.servers.registry import Answer, Rest, serving

CROWD = 100


@pytest.mark.parametrize("slow", [0, 64])
def test_every_client_is_answered(
    tmp_path: Path, slow: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asks beside as many clients that never finish their requests as there are places."""
    for patience in ("DEADLINE_S", "_LINGER_S"):  # with a busy machine
        monkeypatch.setattr(f"spark_logbus.http.connections.{patience}", 30.0)
    with (
        EmbeddedZooKeeper(tmp_path / "zookeeper", heap_mb=64) as zookeeper,
        serving(f"{zookeeper.address}/bus") as server,
        ThreadPoolExecutor(CROWD) as pool,
    ):
        rest = Rest(server)
        assert rest.register("a", INT).status == 200
        together = threading.Barrier(CROWD)

        def ask(number: int) -> Answer | Exception:
            together.wait(60)
            try:
                if number % 2:
                    return rest("GET", "/subjects")
                return rest.register(f"s{number}", INT)
            except (OSError, http.client.HTTPException) as error:
                return error

        with frozen(zookeeper.pid):
            drips = [socket.create_connection(rest.address) for _ in range(slow)]
            for drip in drips:
                drip.sendall(b"GET /subjects HTT")
            answers = list(pool.map(ask, range(CROWD)))
            for drip in drips:
                drip.close()

        unanswered = [each for each in answers if isinstance(each, Exception)]
        assert not unanswered
        for each in answers:
            assert isinstance(each, Answer)
            assert (each.status, each.headers["retry-after"]) == (503, "1")
            assert each.code in (503, 50003)
            assert each.body["message"]
        wait_until(lambda: rest("GET", "/subjects").status == 200)
