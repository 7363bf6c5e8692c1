"""``scripts/bench peers``: starts the servers, and runs the rows that are asked for."""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack

from bench.harness import console
from bench.machine import described
from bench.paper.contenders import ROWS, Contender
from bench.paper.java_clients import SilentServerError
from bench.paper.measuring import READ, SENT, measured
from bench.paper.report import charts_of
from bench.paper.results import show
from bench.paper.servers import SERVERS
from bench.program import at_hand, chosen, draw_charts, parsed, parser_of, raw_results
from bench.result import Metrics, Result
from bench.rounds import in_turn

_RECORDS, _SMALL = 10_000_000, 200_000
_OF_WARM_UP = 20  # the round that does not count has so many times fewer records


def parser() -> argparse.ArgumentParser:
    parser = parser_of(
        "logbus beside Kafka, RabbitMQ and ActiveMQ: the experiments of the Kafka paper, one "
        "producer and one consumer, in turn. What is not at hand is left out.",
        rows={name: row.title for name, row in ROWS.items()},
        rounds=3,
        charts=True,
    )
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
    return parser


def main() -> None:
    args = parsed(parser())
    rows = chosen(args.rows, ROWS)
    names = chosen(args.peers, SERVERS, "server")
    raw = raw_results(args)
    with ExitStack() as stack:
        raw.tell(
            *described("pyarrow", "confluent-kafka"),
            f"{args.records:,} records of {args.value_bytes} bytes, {args.rounds} rounds after a "
            "small one that does not count.",
        )
        servers = {
            name: server
            for name in names
            if (server := at_hand(stack, name, SERVERS[name])) is not None
        }
        raw.tell(", ".join(f"{name} {server.version}" for name, server in servers.items()) + ".")
        silent: set[str] = set()  # servers that hold records which nobody gets
        for name in rows:
            row = ROWS[name]
            contenders = [each for each in row.contenders if each.server in servers]
            for contender in contenders:
                raw.tell(f"{name}, {contender.name}: {contender.client.described}")

            def measure(contender: Contender, counts: bool, row: str = name) -> Metrics:
                if contender.server in silent:
                    return {}
                records = args.records if counts else args.records // _OF_WARM_UP
                began = time.monotonic()
                try:
                    metrics = measured(
                        contender,
                        servers[contender.server],
                        records=records,
                        value_bytes=args.value_bytes,
                    )
                except SilentServerError as error:
                    raw.tell(f"{row}, {contender.name}: {error} Further rounds are without it.")
                    silent.add(contender.server)
                    return {}
                console.print(
                    f"  {contender.name}: {1e6 / metrics[SENT]:,.0f} records/s sent, "
                    f"{1e6 / metrics[READ]:,.0f} read, in {time.monotonic() - began:.0f} s"
                    + ("" if counts else ", which does not count"),
                    markup=False, highlight=False,
                )  # fmt: skip
                return metrics

            took = in_turn(contenders, measure, rounds=args.rounds)
            took = {who: rounds for who, rounds in took.items() if any(rounds)}
            result = Result(name, row.title, SENT, took, (SENT, READ))
            raw.add(result)
            show(row, result)
        draw_charts(args, charts_of(raw.rows))
