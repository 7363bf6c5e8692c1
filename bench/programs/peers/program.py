"""``scripts/bench peers``: starts the servers, and runs the rows that are asked for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from bench.kit.program import Opening, Program, chosen
from bench.programs.peers.contenders import ROWS
from bench.programs.peers.measuring import COMPARED, Bench, Experiment
from bench.programs.peers.servers import SERVERS
from bench.servers.at_hand import at_hand

_RECORDS, _SMALL = 10_000_000, 200_000


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds which servers are measured, and with how many records."""
    parser.add_argument(
        "--peers", default=",".join(SERVERS), help=f"servers to measure, of {'; '.join(SERVERS)}"
    )
    parser.add_argument(
        "--records", type=int, default=_RECORDS, help="slow contenders get a named share of them"
    )
    parser.add_argument(
        "--small", action="store_const", dest="records", const=_SMALL, help=f"{_SMALL:,} records"
    )
    parser.add_argument("--value-bytes", type=int, default=200)


def open_bench(opening: Opening) -> Bench:
    """Starts the servers that are at hand and asked for."""
    args, _, stack, tell = opening
    names = chosen(args.peers, SERVERS, "server")
    servers = {name: at_hand(stack, name, SERVERS[name]) for name in names}
    return Bench(
        servers={name: server for name, server in servers.items() if server is not None},
        rounds=args.rounds,
        records=args.records,
        value_bytes=args.value_bytes,
        tell=tell,
    )


def conditions(bench: Bench, args: argparse.Namespace) -> Iterator[str]:
    """Tells the number of records, the servers' versions, and the clients' settings."""
    yield (
        f"{bench.records:,} records of {bench.value_bytes} bytes, {bench.rounds} rounds after a "
        "small one that does not count."
    )
    yield ", ".join(f"{name} {server.version}" for name, server in bench.servers.items()) + "."
    for name in args.chosen.split(","):
        for contender in bench.at_hand(ROWS[name]):
            yield f"{name}, {contender.name}: {contender.client.described}"


PROGRAM: Final = Program(
    name="peers",
    description="logbus beside Kafka, RabbitMQ and ActiveMQ: the experiments of the Kafka paper, "
    "one producer and one consumer, in turn. What is not at hand is left out.",
    rows={name: Experiment(name, row) for name, row in ROWS.items()},
    open_bench=open_bench,
    conditions=conditions,
    comparing=COMPARED,
    rounds=3,
    add_flags=add_flags,
    packages=("pyarrow", "confluent-kafka"),
)
