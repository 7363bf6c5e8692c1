"""Hosts of a network that a test can cut, each a network namespace of its own on this machine.

No privileges are needed: a program started by ``command_on_a_network`` is root of a user namespace,
and all goes with it. A packet is lost on its way out by an address that nobody has (a permanent
neighbour entry), so each direction between two hosts is cut for itself, silently, as by a switch.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from spark_logbus.local.cluster import BrokerProcess, Settings
from spark_logbus.local.processes import spawn, stop
from tests.helpers import wait_until

_SWITCH: Final = "lan"
_PORT: Final = "eth0"
_PORT_OF_BROKERS: Final = 9092
_NETWORK: Final = "10.77.0"
_NOBODY: Final = "02:00:00:00:ff:ff"
_TRIAL: Final = 'ip link set lo up && ip link add lan type bridge && exec unshare --net "$@"'


def command_on_a_network(*command: str) -> list[str] | None:
    """Returns the command that runs another one with a network of its own; None where the machine
    does not allow that."""
    tools = [shutil.which(tool) for tool in ("unshare", "nsenter", "ip")]
    if None in tools:
        return None
    apart = [str(tools[0]), "--user", "--map-root-user", "--net"]
    trial = subprocess.run([*apart, "sh", "-c", _TRIAL, "sh", "true"], capture_output=True)
    return [*apart, *command] if trial.returncode == 0 else None


@dataclass(frozen=True)
class Host:
    """A host, whose namespace the process ``holder`` keeps; None: this program's own."""

    number: int
    port: str = _PORT
    holder: int | None = None

    @property
    def address(self) -> str:
        return f"{_NETWORK}.{self.number}"

    @property
    def mac(self) -> str:
        return f"02:00:00:00:00:{self.number:02x}"

    @property
    def enter(self) -> list[str]:
        """Beginning of a command that runs on this host."""
        if self.holder is None:
            return []
        nsenter = shutil.which("nsenter")
        assert nsenter is not None, "the network is there, so it was found"
        return [nsenter, "--target", str(self.holder), "--net", "--"]

    def ip(self, *words: str) -> None:
        done = subprocess.run([*self.enter, "ip", *words], capture_output=True, text=True)
        assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


class Network:
    """A switch, and the hosts that are plugged in; ``here`` is this program's. For one thread."""

    def __init__(self, directory: Path) -> None:
        self._output = directory / "hosts.out"
        self._holders: list[subprocess.Popen[bytes]] = []
        self._lost: set[tuple[int, int]] = set()
        self._hosts: dict[int, Host] = {}
        self.here = Host(1, port=_SWITCH)

    def __enter__(self) -> Self:
        here = self.here
        here.ip("link", "set", "lo", "up")
        here.ip("link", "add", _SWITCH, "address", here.mac, "type", "bridge")
        self._plug_in(here)
        return self

    def __exit__(self, *_: object) -> None:
        for holder in self._holders:
            holder.kill()
        for holder in self._holders:
            stop(holder, 10)

    def add(self, number: int) -> Host:
        """Adds a host; its ``number`` is from 2 to 254."""
        unshare, sleep = shutil.which("unshare"), shutil.which("sleep")
        assert unshare is not None
        assert sleep is not None
        holder = spawn([unshare, "--net", sleep, "infinity"], output=self._output)
        self._holders.append(holder)
        executed = Path(f"/proc/{holder.pid}/exe")
        wait_until(lambda: executed.resolve() == Path(sleep).resolve(), message="a namespace")
        host = Host(number, holder=holder.pid)
        plug = f"port{number}"
        self.here.ip(
            "link", "add", plug, "type", "veth",
            "peer", "name", _PORT, "address", host.mac, "netns", str(holder.pid),
        )  # fmt: skip
        self.here.ip("link", "set", plug, "master", _SWITCH, "up")
        host.ip("link", "set", "lo", "up")
        self._plug_in(host)
        return host

    def _plug_in(self, host: Host) -> None:
        host.ip("address", "add", f"{host.address}/24", "dev", host.port)
        host.ip("link", "set", host.port, "up")
        for other in self._hosts.values():
            self._direct(host, other, other.mac)
            self._direct(other, host, host.mac)
        self._hosts[host.number] = host

    def lose(self, senders: Iterable[Host], receivers: Iterable[Host]) -> None:
        """Loses all packets of some hosts to others, until ``mend``."""
        receivers = list(receivers)
        for sender in senders:
            for receiver in receivers:
                if sender is not receiver:
                    self._direct(sender, receiver, _NOBODY)
                    self._lost.add((sender.number, receiver.number))

    def cut(self, some: Sequence[Host], others: Sequence[Host]) -> None:
        """Loses all packets between them, both ways."""
        self.lose(some, others)
        self.lose(others, some)

    def mend(self) -> None:
        """Loses no more packets."""
        for sender, receiver in self._lost:
            self._direct(self._hosts[sender], self._hosts[receiver], self._hosts[receiver].mac)
        self._lost.clear()

    @staticmethod
    def _direct(sender: Host, receiver: Host, mac: str) -> None:
        sender.ip(
            "neighbour", "replace", receiver.address,
            "lladdr", mac, "nud", "permanent", "dev", sender.port,
        )  # fmt: skip


class BrokerOnHost(BrokerProcess):
    """``logbus broker`` on a host. Use from one thread at a time."""

    def __init__(
        self, broker_id: int, directory: Path, *, zookeeper: str, settings: Settings, host: Host
    ) -> None:
        own = {**settings.get("broker", {}), "host": host.address, "port": _PORT_OF_BROKERS}
        super().__init__(
            broker_id, directory, zookeeper=zookeeper, settings={**settings, "broker": own}
        )
        self.host = host

    def _prepare(self) -> list[str]:
        return [*self.host.enter, *super()._prepare()]
