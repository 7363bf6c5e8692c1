"""Clients: connections, metadata cache, producer, consumer, range reader, admin."""

from spark_logbus.client.admin.admin import (
    Admin,
    PartitionDescription,
    TopicAlteration,
    TopicDescription,
)
from spark_logbus.client.cluster.bootstrap import Bootstrap
from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.client.config import ClientConfig, ConsumerConfig, ProducerConfig
from spark_logbus.client.consumer.consumer import Consumer
from spark_logbus.client.fetch.batches import FetchedBatch
from spark_logbus.client.fetch.columns import FetchedColumns
from spark_logbus.client.fetch.range_reader import RangeReader
from spark_logbus.client.fetch.records import ConsumerRecord
from spark_logbus.client.producer.acknowledgements import (
    AppendedRange,
    RecordFuture,
    RecordMetadata,
)
from spark_logbus.client.producer.producer import Producer
from spark_logbus.protocol import PartitionEnds

__all__ = [
    "Admin",
    "AppendedRange",
    "Bootstrap",
    "ClientConfig",
    "Cluster",
    "Consumer",
    "ConsumerConfig",
    "ConsumerRecord",
    "FetchedBatch",
    "FetchedColumns",
    "PartitionDescription",
    "PartitionEnds",
    "Producer",
    "ProducerConfig",
    "RangeReader",
    "RecordFuture",
    "RecordMetadata",
    "TopicAlteration",
    "TopicDescription",
]
