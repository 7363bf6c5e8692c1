from __future__ import annotations

import pytest

from spark_logbus.errors import StorageError
from spark_logbus.ports import FREE_PORTS, TRIES, bind_port, random_ports


class Machine:
    """Binds, as long as a port is not taken."""

    def __init__(self, *taken: int, all_but: int | None = None) -> None:
        self.taken = taken
        self.all_but = all_but
        self.tried: list[int] = []

    def bind(self, port: int) -> int:
        self.tried.append(port)
        if port in self.taken or self.all_but not in (None, port):
            raise StorageError(f"Port {port} is taken.")
        return port


def test_random_ports_are_those_that_no_outgoing_connection_takes() -> None:
    ports = random_ports()
    assert len(set(ports)) == TRIES
    assert all(port in FREE_PORTS for port in ports)


def test_a_given_port_is_the_only_one() -> None:
    assert bind_port(9192, 25_000, Machine().bind) == 9192
    machine = Machine(9192)
    with pytest.raises(StorageError, match="9192"):
        bind_port(9192, 25_000, machine.bind)
    assert machine.tried == [9192]


def test_the_port_of_the_last_run_comes_first() -> None:
    assert bind_port(0, 25_000, Machine().bind) == 25_000
    machine = Machine(25_000)
    assert bind_port(0, 25_000, machine.bind) in FREE_PORTS
    assert machine.tried[0] == 25_000


def test_the_system_chooses_when_all_are_taken() -> None:
    machine = Machine(all_but=0)
    assert bind_port(0, None, machine.bind) == 0
    assert len(machine.tried) == TRIES + 1
