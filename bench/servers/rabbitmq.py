"""One RabbitMQ broker with its own defaults, from Debian's packages, with an epmd of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.servers.debian import unpacked
from bench.servers.starting import HOST, STOP_GRACE_S, free_ports, wait_until_ready
from spark_logbus.local.processes import spawn, stop

_ERLANG = (
    "asn1", "base", "crypto", "eldap", "inets", "mnesia", "os-mon", "parsetools", "public-key",
    "runtime-tools", "ssl", "syntax-tools", "tools", "xmerl",
)  # fmt: skip
_PACKAGES = ("rabbitmq-server", *(f"erlang-{name}" for name in _ERLANG))

# As its sbin/rabbitmq-server starts the Erlang machine, which then is the process that is stopped.
_ERLANG_OPTIONS = (
    "-noinput", "-s", "rabbit", "boot", "-boot", "start_sasl", "+W", "w", "+MBas", "ageffcbf",
    "+MHas", "ageffcbf", "+MBlmbcs", "512", "+MHlmbcs", "512", "+MMmcs", "30", "+P", "1048576",
    "+t", "5000000", "+stbt", "db", "+zdbbl", "128000", "+sbwt", "none", "+sbwtdcpu", "none",
    "+sbwtdio", "none", "+B", "i", "-syslog", "logger", "[]", "-syslog", "syslog_error_logger",
    "false", "-kernel", "prevent_overlapping_partitions", "false",
)  # fmt: skip
_ON_LOOPBACK = ("-start_epmd", "false", "-kernel", "inet_dist_use_interface", "{127,0,0,1}")


@dataclass(frozen=True)
class RabbitMq:
    """A running broker. Its user is guest."""

    address: str
    """Of AMQP."""
    stream_address: str
    """Of the streams' own protocol."""
    data: Path
    """Where it keeps all queues."""
    version: str


@contextmanager
def rabbitmq() -> Iterator[RabbitMq]:
    """Runs a fresh broker, gone afterwards.

    Raises ServerUnavailableError, and EmbeddedServerError if it does not start.
    """
    root = unpacked("rabbitmq", _PACKAGES)
    home = next((root / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
    erlang = root / "usr/lib/erlang"
    programs = next(erlang.glob("erts-*")) / "bin"
    with tempfile.TemporaryDirectory(prefix="logbus-bench-rabbitmq-") as name, ExitStack() as stack:
        directory = Path(name)
        data = directory / "data"
        port, stream_port, node_port, epmd_port = free_ports(4)
        (directory / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = {HOST}:{port}\nstream.listeners.tcp.1 = {HOST}:{stream_port}\n"
        )
        (directory / "enabled_plugins").write_text("[rabbitmq_stream].\n")
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": name,  # for the cookie that nodes share
            "ROOTDIR": str(erlang),
            "BINDIR": str(programs),
            "EMU": "beam",
            "PROGNAME": "erl",
            "ERL_LIBS": str(home / "plugins"),
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_MAX_ETS_TABLES": "50000",
            "ERL_MAX_PORTS": "65536",
            "RABBITMQ_HOME": str(home),
            "RABBITMQ_PLUGINS_DIR": str(home / "plugins"),
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_DIST_PORT": str(node_port),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(directory / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(data),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_LOGS": "-",
        }
        output = directory / "epmd.out"
        epmd = spawn([programs / "epmd"], output=output, env=environment)
        stack.callback(stop, epmd, STOP_GRACE_S)
        wait_until_ready("epmd", epmd, port=epmd_port, output=output)
        output = directory / "rabbitmq.out"
        command = [str(programs / "erlexec"), *_ERLANG_OPTIONS, *_ON_LOOPBACK]
        server = spawn(command, output=output, env=environment)
        stack.callback(stop, server, STOP_GRACE_S)
        for each in (port, stream_port):
            wait_until_ready("RabbitMQ", server, port=each, output=output)
        yield RabbitMq(
            f"{HOST}:{port}", f"{HOST}:{stream_port}", data, version=home.name.split("-")[1]
        )
