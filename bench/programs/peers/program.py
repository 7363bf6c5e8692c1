"""``scripts/bench peers``: starts the servers, and runs the rows that are asked for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from bench.kit.program import Opening, Program, Row, chosen
from bench.programs.peers.contenders import REPLICATED_ROWS, ROWS
from bench.programs.peers.failover import Failover
from bench.programs.peers.measuring import COMPARED, Bench, Experiment
from bench.programs.peers.servers import SERVERS, SESSION_MS, servers_of
from bench.servers.at_hand import at_hand

_RECORDS, _SMALL = 10_000_000, 200_000
_ROWS: Final = {**ROWS, **REPLICATED_ROWS}
_FAILOVER: Final = "failover"
_OF_SEVERAL: Final = (*REPLICATED_ROWS, _FAILOVER)


class _Replicas(argparse.Action):
    """Asks for the rows about replicas, unless rows are named."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        namespace.replicas = values
        if namespace.chosen == parser.get_default("chosen"):
            namespace.chosen = ",".join(_OF_SEVERAL)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds which servers are measured, and with how many records."""
    parser.add_argument(
        "--peers", default=",".join(SERVERS), help=f"servers to measure, of {'; '.join(SERVERS)}"
    )
    parser.add_argument(
        "--replicas",
        type=int,
        action=_Replicas,
        help="of each partition, with as many brokers: logbus and Kafka alone, and the rows "
        f"{', '.join(_OF_SEVERAL)} if none are named",
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
    args, rows, stack, tell = opening
    if args.replicas is None and not {*rows}.isdisjoint(_OF_SEVERAL):
        raise SystemExit(f"{', '.join(_OF_SEVERAL)} are of replicas; say how many, --replicas 3.")
    if args.replicas is not None and args.replicas < 1:
        raise SystemExit(f"A partition has one replica or more, not {args.replicas}.")
    names = chosen(args.peers, SERVERS, "server")
    known = servers_of(args.replicas)
    servers = {name: at_hand(stack, name, known[name]) for name in names if name in known}
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
    if args.replicas is not None:
        yield (
            f"{args.replicas} brokers, and as many replicas of each partition; two of three or "
            f"more have to be in sync; a broker is gone when it is silent for {SESSION_MS} ms."
        )
    for name in args.chosen.split(","):
        for contender in bench.at_hand(_ROWS[name]) if name in _ROWS else ():
            yield f"{name}, {contender.name}: {contender.client.described}"


def _rows() -> Mapping[str, Row[Bench]]:
    return {**{name: Experiment(name, row) for name, row in _ROWS.items()}, _FAILOVER: Failover()}


PROGRAM: Final = Program(
    name="peers",
    description="logbus beside Kafka, RabbitMQ and ActiveMQ: the experiments of the Kafka paper, "
    "one producer and one consumer, in turn. What is not at hand is left out.",
    rows=_rows(),
    open_bench=open_bench,
    conditions=conditions,
    comparing=COMPARED,
    rounds=3,
    add_flags=add_flags,
    by_default=tuple(ROWS),
    packages=("pyarrow", "confluent-kafka"),
)
