"""Write to a topic from Spark (acks=flushed), against an Arrow writer that discards."""

from __future__ import annotations

import argparse

from bench.baselines import Discard
from bench.harness import Contender, cluster, in_turn, print_ratios, spark_session
from spark_logbus.client import Admin, Bootstrap, Cluster

TARGET = 0.60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tcp", action="store_true", help="no UNIX socket, as if far away")
    arguments = parser.parse_args()
    with cluster(tcp_only=arguments.tcp) as running, spark_session() as spark:
        spark.dataSource.register(Discard)
        with Cluster.connect(Bootstrap.from_zookeeper(running.zookeeper)) as client:
            Admin(client).create_topic("bench", partitions=arguments.partitions)
        value = f"cast(rpad(cast(id as string), {arguments.value_bytes}, 'x') as binary) as value"
        rows = spark.range(0, arguments.records, 1, 2).selectExpr(value)

        def discard() -> None:
            rows.write.format("discard").mode("append").save()

        def logbus() -> None:
            rows.write.format("logbus").mode("append").option(
                "zookeeper", running.zookeeper
            ).option("topic", "bench").save()

        took = in_turn(
            [Contender("discards", discard), Contender("logbus", logbus)], rounds=arguments.rounds
        )
        print_ratios(
            f"Write {arguments.records:,} records of {arguments.value_bytes} bytes, acks=flushed",
            took,
            baseline="discards",
            records=arguments.records,
            target=TARGET,
        )
        stored = arguments.records * (arguments.rounds + 1)
        count = (
            spark.read.format("logbus")
            .option("zookeeper", running.zookeeper)
            .option("subscribe", "bench")
            .load()
            .count()
        )
        if count != stored:
            raise SystemExit(f"Expected {stored} records in the topic, got {count}.")


if __name__ == "__main__":
    main()
