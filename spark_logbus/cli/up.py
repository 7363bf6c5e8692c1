"""``logbus up``: ZooKeeper and brokers on this machine, for as long as it runs."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.panel import Panel

_CHECK_S = 1.0


def up(
    brokers: Annotated[int, typer.Option(help="How many brokers.", min=1)] = 1,
    data: Annotated[Path, typer.Option(help="Where everything is kept.")] = Path("logbus-data"),
    zookeeper_port: Annotated[
        int, typer.Option(help="ZooKeeper's port; 0: that of the last run, else any free one.")
    ] = 0,
) -> None:
    """Start ZooKeeper and brokers here; Ctrl-C or SIGTERM stops them. The data stays."""
    from spark_logbus.cluster import EmbeddedCluster

    console = Console()
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    cluster = EmbeddedCluster(data, brokers=brokers, zookeeper_port=zookeeper_port)
    with console.status(f"Starting ZooKeeper and {brokers} broker(s) in {data} ..."):
        cluster.start()
    try:
        addresses = "\n".join(
            f"broker {broker.broker_id}   {broker.address}  (log: {broker.log_file})"
            for broker in cluster.brokers
        )
        console.print(
            Panel(
                f"ZooKeeper  {cluster.zookeeper}\n{addresses}\n\n"
                f"In this or another shell:\n"
                f"  export LOGBUS_ZOOKEEPER={cluster.zookeeper}\n"
                f"  logbus topics create events --partitions 4\n"
                f"In a notebook:\n"
                f'  spark.read.format("logbus").option("zookeeper", "{cluster.zookeeper}")'
                f'.option("subscribe", "events").load()\n\n'
                "Ctrl-C stops the cluster; its data stays.",
                title="logbus is up",
                expand=False,
            ),
            soft_wrap=True,
        )
        _watch(cluster.brokers, stop, console)
    finally:
        with console.status("Stopping ..."):
            cluster.stop()
    console.print("Stopped.")


def _watch(brokers: list, stop: threading.Event, console: Console) -> None:  # type: ignore[type-arg]
    """Wait for the signal; say it once when a broker has died meanwhile."""
    reported: set[int] = set()
    while not stop.wait(_CHECK_S):
        for broker in brokers:
            if not broker.running and broker.broker_id not in reported:
                reported.add(broker.broker_id)
                console.print(
                    f"[bold red]Broker {broker.broker_id} has died;[/] see {broker.log_file}. "
                    "Its partitions cannot be reached until you restart `logbus up`."
                )
