"""Clients: connections, metadata cache, producer, consumer, range reader, admin."""

from spark_logbus.client.acknowledgements import AppendedRange, RecordFuture, RecordMetadata
from spark_logbus.client.admin import Admin
from spark_logbus.client.alterations import TopicAlteration
from spark_logbus.client.bootstrap import Bootstrap
from spark_logbus.client.cluster import Cluster
from spark_logbus.client.config import ClientConfig, ConsumerConfig, ProducerConfig
from spark_logbus.client.consumer import Consumer
from spark_logbus.client.describe import PartitionDescription, TopicDescription
from spark_logbus.client.fetched import FetchedBatch
from spark_logbus.client.producer import Producer
from spark_logbus.client.range_reader import RangeReader
from spark_logbus.client.records import ConsumerRecord
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
