"""Write to a topic from Spark, exactly once and at least once, against an Arrow writer that
discards and, with --kafka, Spark's Kafka sink."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack

from pyspark.sql import DataFrame, SparkSession

from bench.baselines import Discard
from bench.harness import Contender, cluster, print_ratios, spark_session, timed_in_turn
from bench.peers import PeerUnavailableError
from bench.peers.kafka import Kafka, kafka
from bench.peers.tuning import TUNED_SINK
from spark_logbus.client import Admin, Bootstrap, Cluster

TARGETS = {"exactly once": 0.70, "at least once": 0.80}
TOPIC = "bench"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tcp", action="store_true", help="no UNIX socket, as if far away")
    parser.add_argument(
        "--kafka",
        action="store_true",
        help="also Spark's Kafka sink, tuned, each append flushed",
    )
    arguments = parser.parse_args()
    with ExitStack() as stack:
        running = stack.enter_context(cluster(tcp_only=arguments.tcp))
        peer: Kafka | None = None
        if arguments.kafka:
            try:
                peer = stack.enter_context(kafka(flushed=True))
            except PeerUnavailableError as error:
                raise SystemExit(str(error)) from error
        spark = stack.enter_context(spark_session(jars=peer.connector if peer else ()))
        spark.dataSource.register(Discard)
        with Cluster.connect(Bootstrap.from_zookeeper(running.zookeeper)) as client:
            Admin(client).create_topic(TOPIC, partitions=arguments.partitions)
        if peer is not None:
            peer.create_topic(TOPIC, partitions=arguments.partitions)
        value = f"cast(rpad(cast(id as string), {arguments.value_bytes}, 'x') as binary) as value"
        rows = spark.range(0, arguments.records, 1, 2).selectExpr(value)
        contenders = [
            Contender("discards", _write(rows, "discard")),
            *(
                Contender(
                    name,
                    _write(
                        rows,
                        "logbus",
                        zookeeper=running.zookeeper,
                        topic=TOPIC,
                        delivery=name.replace(" ", "-"),
                    ),
                )
                for name in TARGETS
            ),
        ]
        if peer is not None:
            server = {"kafka.bootstrap.servers": peer.bootstrap, "topic": TOPIC}
            contenders.append(
                Contender("Kafka, tuned", _write(rows, "kafka", **server, **TUNED_SINK))
            )
        took = timed_in_turn(contenders, rounds=arguments.rounds)
        print_ratios(
            f"Write {arguments.records:,} records of {arguments.value_bytes} bytes, flushed",
            took,
            baseline="discards",
            records=arguments.records,
            targets=TARGETS,
        )
        each = arguments.records * (arguments.rounds + 1)
        _check(spark, each * len(TARGETS), "logbus", zookeeper=running.zookeeper, subscribe=TOPIC)
        if peer is not None:
            _check(
                spark, each, "kafka",
                **{"kafka.bootstrap.servers": peer.bootstrap, "subscribe": TOPIC},
            )  # fmt: skip


def _write(rows: DataFrame, source: str, **options: str) -> Callable[[], None]:
    def write() -> None:
        rows.write.format(source).mode("append").options(**options).save()

    return write


def _check(spark: SparkSession, stored: int, source: str, **options: str) -> None:
    count = spark.read.format(source).options(**options).load().count()
    if count != stored:
        raise SystemExit(f"Expected {stored} records in the topic of {source}, got {count}.")


if __name__ == "__main__":
    main()
