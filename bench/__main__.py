"""``scripts/bench <name>``: run one benchmark and print its table."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys

from spark_logbus.programs import run_program

BENCHMARKS = {
    "read": "batch read of a topic, against ready-made Arrow batches",
    "append": "write to a topic, against an Arrow writer that discards",
    "sink": "micro-batches from topic to topic: what exactly once adds to at least once",
    "network": "the broker's threads, against a thread for each connection and asyncio",
    "spark": "batch reads and writes, against Spark's Kafka connector on a Kafka broker",
    "stream": "micro-batches, starts and reads of streams, against Kafka's and a source of nothing",
    "recovery": "start after a clean stop and after a crash, and memory, with 10 GiB",
    "requests": "what an append request costs the broker, in itself and in the kernel",
    "interference": "latency of appends beside cold, stopped and idle readers, against alone",
    "clients": "producers and consumers, against librdkafka's and Kafka's own in Java",
    "scaling": "partitions, readers, sizes of logs and brokers: how costs grow, beside Kafka's",
    "load": "a topic loaded into a warehouse, against a Spark job that writes the same rows",
    "mirror": "a topic copied to another cluster, against a consumer and a producer",
    "move": "a partition that moves to another broker, against a copy of its files",
    "typed": "topics with a schema in Spark, against ready-made Arrow batches, JSON and Avro",
    "avro": "Avro datums to columns and back, against a loop of fastavro's",
    "audit": "what counting costs a producer, and an audit",
    "record": "encode, verify and decode one record batch",
    "runs": "a program with raw results, several times with fresh servers",
    "compare": "raw results of one's own beside those of the documents",
    "report": "tables of raw results, and charts of scaling, written into the documents",
    "security": "reads through TLS beside Kafka's, and appends to a broker that asks who sends",
    "peers": "the Kafka paper's experiments, against Kafka, RabbitMQ and ActiveMQ",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("name", choices=sorted(BENCHMARKS), help="; ".join(
        f"{name}: {text}" for name, text in sorted(BENCHMARKS.items())
    ))  # fmt: skip
    arguments = parser.parse_args(sys.argv[1:2])  # what follows is the benchmark's own
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Ended by SIGTERM."))  # servers are stopped
    sys.argv = [f"scripts/bench {arguments.name}", *sys.argv[2:]]
    module = importlib.import_module(f"bench.programs.{arguments.name}")
    if hasattr(module, "__path__"):  # a program of several modules
        module = importlib.import_module(f"{module.__name__}.program")
    result: int | None = getattr(module, "PROGRAM", module).main()
    return result or 0


if __name__ == "__main__":
    run_program(main)
