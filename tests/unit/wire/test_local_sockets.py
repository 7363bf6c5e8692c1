from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from spark_logbus.clock import SystemClock
from spark_logbus.errors import BrokerUnavailableError
from spark_logbus.model import BrokerAddress, new_local_socket
from spark_logbus.retry import Deadline
from spark_logbus.security.logins import TokenLogin
from spark_logbus.wire.config import ConnectionConfig
from spark_logbus.wire.connect import believes, connect

NOBODY = 65_534
BROKER, ME, ELSE = 990, 1000, 1001
OLD_NAME = "logbus-0123456789abcdef0123456789abcdef"

# Listens at the UNIX socket of that name as another user, and tells what it is sent.
_IMPOSTOR = """
import os, socket, sys
os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0" + sys.argv[1]); listener.listen()
print("listening", flush=True)
other, _ = listener.accept()
other.settimeout(60)
print(len(other.recv(4096)), flush=True)
"""


def at(name: str | None) -> BrokerAddress:
    return BrokerAddress(1, "127.0.0.1", 1, name)


def test_the_name_of_a_socket_tells_whose_it_is() -> None:
    assert at(new_local_socket(BROKER)).local_uid == BROKER
    assert new_local_socket(BROKER) != new_local_socket(BROKER)
    for none in (
        None,
        OLD_NAME,
        "logbus-0-0123",
        f"{new_local_socket(7)}x",
        "logbus--1-" + "0" * 32,
    ):
        assert at(none).local_uid is None


@pytest.mark.parametrize("is_secured", [False, True])
def test_a_socket_is_believed_that_its_name_and_the_kernel_say_is_the_brokers(
    is_secured: bool,
) -> None:
    address = at(new_local_socket(BROKER))

    def believed(uid: int) -> bool:
        return believes(address, uid, own_uid=ME, is_secured=is_secured)

    assert all(believed(each) for each in (BROKER, ME, 0))
    assert not any(believed(each) for each in (ELSE, NOBODY))


def test_a_name_of_an_earlier_release_does_where_nothing_is_proved_at_all() -> None:
    assert believes(at(OLD_NAME), BROKER, own_uid=ME, is_secured=False)
    assert not believes(at(OLD_NAME), BROKER, own_uid=ME, is_secured=True)
    assert believes(at(OLD_NAME), ME, own_uid=ME, is_secured=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize(
    "new_name", [lambda: new_local_socket(0), lambda: f"{OLD_NAME[:-8]}{os.getpid():08x}"]
)
def test_who_takes_the_socket_of_a_broker_that_is_down_is_shown_no_token(
    new_name: Callable[[], str],
) -> None:
    name = new_name()
    impostor = subprocess.Popen(
        [sys.executable, "-c", _IMPOSTOR, name, str(NOBODY)], stdout=subprocess.PIPE, text=True
    )
    assert impostor.stdout is not None
    with impostor, socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
        closed.close()  # nobody is at the broker's port
        assert impostor.stdout.readline() == "listening\n"
        config = ConnectionConfig(client_id="task", login=TokenLogin(get=lambda: b"a token"))
        deadline = Deadline.after_ms(SystemClock(), 60_000)
        with pytest.raises(BrokerUnavailableError, match="Cannot connect"):
            connect(BrokerAddress(1, "127.0.0.1", port, name), config, deadline)
        assert impostor.stdout.readline() == "0\n"
