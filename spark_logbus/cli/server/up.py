"""``logbus up``: ZooKeeper and brokers on this machine, for as long as it runs."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from spark_logbus.cli.output import Console, console
from spark_logbus.errors import EmbeddedServerError
from spark_logbus.plurals import plural

if TYPE_CHECKING:
    from spark_logbus.local.cluster import EmbeddedCluster
    from spark_logbus.local.registry import RegistryProcess

_CHECK_S = 1.0


def up(
    brokers: Annotated[
        int | None,
        typer.Option(
            "--brokers",
            "-b",
            help="How many brokers; default: as many as ran here before, else one.",
            min=1,
            show_default=False,
        ),
    ] = None,
    data: Annotated[Path, typer.Option("--data", "-d", help="Where everything is kept.")] = Path(
        "logbus-data"
    ),
    zookeeper_port: Annotated[
        int,
        typer.Option(
            help="ZooKeeper's port; 0: that of the last run, else 2181 if it is free, else any."
        ),
    ] = 0,
    registry_port: Annotated[
        int, typer.Option(help="The schema registry's port; 0: as of the last run, else any.")
    ] = 0,
    security: Annotated[
        Path | None,
        typer.Option(
            "--security",
            help="Secure it with this directory of `logbus security init`; default: as of the last "
            "run.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Start ZooKeeper, brokers and a schema registry here; Ctrl-C or SIGTERM stops them.

    The data stays, and so do the ports. The file env in it sets LOGBUS_ZOOKEEPER in a shell, or the
    profile of a cluster that is secured.

    \b
    Example:
      logbus up -b 3 -d /tmp/logbus
    """
    # All of it before the signals are taken: an interrupted import can end the process by SIGINT,
    # though its KeyboardInterrupt was caught.
    from spark_logbus.cli.server.clocks import tell_of_clocks
    from spark_logbus.cli.server.securing import secured_by
    from spark_logbus.local.cluster import EmbeddedCluster
    from spark_logbus.local.registry import RegistryProcess
    from spark_logbus.zookeeper.connect_string import DEFAULT_PORT

    out = console()
    before = len(list(data.glob("broker-[0-9]*")))
    count = brokers or before or 1
    secured = secured_by(data, security)
    if secured is None:
        cluster = EmbeddedCluster(
            data,
            brokers=count,
            zookeeper_port=zookeeper_port,
            preferred_zookeeper_port=DEFAULT_PORT,  # where clients look that are given no address
        )
    else:
        cluster = secured.cluster(data, count, zookeeper_port)
    registry: RegistryProcess | None = None
    for number in (signal.SIGTERM, signal.SIGINT):  # a shell may have it ignored in "up &"
        signal.signal(number, _interrupt)
    try:
        with out.status(f"Starting ZooKeeper and {plural(count, 'broker')} in {data} ..."):
            cluster.start()
            if secured is None:
                registry = RegistryProcess(data, zookeeper=cluster.zookeeper, port=registry_port)
            else:
                secured.finish()
                registry = secured.registry(data, registry_port)
            try:
                registry.start()
            except EmbeddedServerError as error:  # records go without it
                out.print(f"Schemas are not served: {error}", style="bold red")
                registry = None
        export = f"export LOGBUS_ZOOKEEPER={cluster.zookeeper}"
        if secured is not None:
            export = secured.export
        (data / "env").write_text(f"{export}\n", "utf-8")
        _greet(out, cluster, registry, export, data / "env")
        tell_of_clocks(out, cluster.brokers)
        if count < before:
            out.print(
                f"{data} holds the records of {before} brokers, and only {count} run: partitions "
                "of the others cannot be reached.",
                style="bold red",
            )
        _watch(out, cluster, registry)
    except KeyboardInterrupt:
        pass
    finally:
        # Once is enough: a second Ctrl-C would break off the orderly end of the first.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        with out.status("Stopping ..."):
            if registry is not None:
                registry.stop()
            cluster.stop()
    out.print("Stopped.")


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _greet(
    out: Console, cluster: EmbeddedCluster, registry: RegistryProcess | None, export: str, env: Path
) -> None:
    out.print("logbus is up", style="bold")
    out.print(f"ZooKeeper  {cluster.zookeeper}")
    for broker in cluster.brokers:
        out.print(f"broker {broker.broker_id}   {broker.address}  (log: {broker.log_file})")
    if registry is not None:
        out.print(f"schemas    {registry.url}  (log: {registry.log_file})")
    out.print(
        "\nIn another shell:\n"
        f"  {export}\n"
        "  logbus topics create events --partitions 4\n\n"
        f"The first of these lines is also in {env}, for the command source.\n\n"
        "In a notebook started from that shell:\n"
        '  spark.read.format("logbus").option("subscribe", "events").load()\n\n'
        "Ctrl-C stops the cluster; its data stays.\n"
    )


def _watch(out: Console, cluster: EmbeddedCluster, registry: RegistryProcess | None) -> NoReturn:
    """Say it once when a server has died; ends with KeyboardInterrupt."""
    reported: set[str] = set()
    pause = threading.Event()  # never set
    while True:
        pause.wait(_CHECK_S)
        dead = {
            f"Broker {broker.broker_id} has died (see {broker.log_file}); its partitions "
            "that have no other replica"
            for broker in cluster.brokers
            if not broker.running
        }
        if not cluster.zookeeper_server.running:
            dead.add("ZooKeeper has died (see zookeeper.log); topics and groups")
        if registry is not None and not registry.running:
            dead.add(f"The schema registry has died (see {registry.log_file}); its URL")
        for what in sorted(dead - reported):
            out.print(f"{what} cannot be reached until you restart `logbus up`.", style="bold red")
        reported |= dead
