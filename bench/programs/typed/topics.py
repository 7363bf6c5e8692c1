"""The topics that hold the flights in each form, and what they take on disk and on the wire."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.kit.baselines import PARTITIONS, repeated
from bench.kit.harness import console
from bench.programs.typed.flights import SCHEMA, Flights
from bench.servers.logbus import Logbus
from bench.servers.systems import stored
from spark_logbus.client import Admin, ClientConfig, Cluster, Producer, ProducerConfig, RangeReader
from spark_logbus.client.fetch.values import ValueReader
from spark_logbus.client.schemas.topic import find_value_schemas
from spark_logbus.model import BrokerAddress, Compression, OffsetRange, TopicPartition
from spark_logbus.schemas.registry import SchemaRegistry
from spark_logbus.topic_schemas import Encoding
from spark_logbus.zookeeper import Session

COLUMNS, AVRO = Encoding.COLUMNS.value, Encoding.AVRO.value
DATUMS, JSON = "datums", "json"  # as plain bytes

_RECEIVED_AT = 128  # bytes that have come, in Linux's struct tcp_info


@dataclass
class Topics:
    """Topics in a cluster of one broker, each filled when it is first asked for."""

    system: Logbus
    flights: Flights
    filled: set[str] = field(default_factory=set)

    def topic(
        self, form: str, *, rows: int | None = None, compression: Compression = Compression.NONE
    ) -> str:
        """Returns a topic with the flights in that form, in record batches of the same flights."""
        rows = self.flights.rows if rows is None else rows
        name = f"{form}-{rows}-{compression.name.lower()}"
        if name not in self.filled:
            with console.status(f"Filling {name} ..."):
                self._fill(name, form, rows, compression)
            self.filled.add(name)
        return name

    def _fill(self, name: str, form: str, rows: int, compression: Compression) -> None:
        typed = form in (COLUMNS, AVRO)
        Admin(self.system.client).create_topic(
            name,
            partitions=PARTITIONS,
            value_schema=SCHEMA if typed else None,
            value_encoding=form if typed else None,
        )
        table = (
            {DATUMS: self.flights.datums, JSON: self.flights.json}.get(form) if not typed else None
        )
        batches = self.flights.batches(table)
        # An arrow batch is one record batch, however large its values are.
        config = ProducerConfig(compression=compression, arrow_piece_bytes=12 << 20)
        with Producer(self.system.client, config) as producer:
            places = repeated([batch.num_rows for batch in batches], rows)
            for place, (number, count) in enumerate(places):
                part = batches[number].slice(0, count)
                producer.send_arrow(name, part, partition=place % PARTITIONS)
            producer.flush()

    def values(self, topic: str, fields: Sequence[str] | None = None) -> ValueReader:
        """Decodes the values of a topic with a schema, without the records' own columns."""
        config = Admin(self.system.client).describe([topic], ends=False)[topic].config
        with Session(self.system.address, client_name="bench") as session:
            schemas = find_value_schemas(SchemaRegistry(session), topic, config)
        if schemas is None:
            raise SystemExit(f"{topic} has no schema.")
        return ValueReader(schemas, fields=fields, columns=())

    def ranges(self, topic: str) -> list[OffsetRange]:
        """Returns all of each partition."""
        ends = self.system.ends(topic, partitions=PARTITIONS)
        return [
            OffsetRange(TopicPartition(topic, number), 0, end) for number, end in enumerate(ends)
        ]

    def stored_bytes(self, topic: str) -> int:
        """Sums its segments, without their indexes."""
        return stored(self.system, topic, partitions=PARTITIONS).size_bytes

    def bytes_over_tcp(self, topic: str, fields: Sequence[str] | None) -> int:
        """Counts what comes to a client on another machine that reads it to the end, by the
        kernel's word."""
        ranges, values = self.ranges(topic), self.values(topic, fields)
        config = ClientConfig(local_sockets=False, idle_connections=1)
        with Cluster.from_zookeeper(self.system.address, config) as far:
            leader = far.leader(ranges[0].topic_partition, far.retry_deadline())
            before = _received(far, leader)
            rows = 0
            for each in ranges:
                with RangeReader(far, each, values=values) as reader:
                    rows += sum(batch.arrow_batch.num_rows for batch in reader)
            if rows != self.flights.rows:
                raise SystemExit(f"{topic}: expected {self.flights.rows} records, got {rows}.")
            return _received(far, leader) - before


def _received(cluster: Cluster, leader: BrokerAddress) -> int:
    """The bytes that have come over the connection that the next request takes, too."""
    connection = cluster.pool.take(leader, cluster.retry_deadline())
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        told = same.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    cluster.pool.give_back(connection)
    return int.from_bytes(told[_RECEIVED_AT : _RECEIVED_AT + 8], "little")
