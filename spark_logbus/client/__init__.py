"""Clients: connections, metadata cache, producer, consumer, range reader, admin."""

from typing import TYPE_CHECKING

from spark_logbus.lazy_names import lazy_names
from spark_logbus.model import (
    Acks,
    AtOffset,
    AtTimestamp,
    Compression,
    Earliest,
    LastDuration,
    LastRecords,
    Latest,
    OffsetRange,
    OffsetSpec,
    TopicPartition,
)

if TYPE_CHECKING:
    from spark_logbus.client.admin.admin import Admin, TopicAlteration
    from spark_logbus.client.admin.cluster_health import BrokerDescription, ClusterDescription
    from spark_logbus.client.admin.groups import GroupDescription, GroupPosition, GroupRewind
    from spark_logbus.client.admin.levels import BrokerLoad
    from spark_logbus.client.admin.move_plans import MovePlan, PlannedMove
    from spark_logbus.client.admin.moves import MoveDescription
    from spark_logbus.client.aio import AsyncConsumer, AsyncProducer
    from spark_logbus.client.cluster.bootstrap import Bootstrap
    from spark_logbus.client.cluster.cluster import Cluster
    from spark_logbus.client.config import ClientConfig, ConsumerConfig, ProducerConfig
    from spark_logbus.client.consumer.consumer import Consumer
    from spark_logbus.client.fetch.batches import FetchedBatch
    from spark_logbus.client.fetch.columns import FetchedColumns
    from spark_logbus.client.fetch.first_fetches import FirstFetches
    from spark_logbus.client.fetch.range_reader import RangeReader
    from spark_logbus.client.fetch.records import ConsumerRecord
    from spark_logbus.client.producer.acknowledgements import (
        AppendedRange,
        RecordFuture,
        RecordMetadata,
    )
    from spark_logbus.client.producer.failures import FailedRecords
    from spark_logbus.client.producer.interceptors import ProducerInterceptor
    from spark_logbus.client.producer.producer import Producer
    from spark_logbus.client.schemas.admin import SchemaDescription
    from spark_logbus.client.writes.atomic_write import (
        AtomicWrites,
        Commit,
        Repetition,
        StagedTask,
        WriteIdentity,
    )
    from spark_logbus.client.writes.content import WriteInputs
    from spark_logbus.offsets.descriptions import PartitionDescription, TopicDescription
    from spark_logbus.protocol import PartitionEnds
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "admin.admin": "Admin TopicAlteration",
            "admin.describing": "PartitionDescription PartitionEnds TopicDescription",
            "admin.cluster_health": "BrokerDescription ClusterDescription",
            "admin.groups": "GroupDescription GroupPosition GroupRewind",
            "admin.levels": "BrokerLoad",
            "admin.move_plans": "MovePlan PlannedMove",
            "admin.moves": "MoveDescription",
            "schemas.admin": "SchemaDescription",
            "aio": "AsyncConsumer AsyncProducer",
            "cluster.bootstrap": "Bootstrap",
            "cluster.cluster": "Cluster",
            "config": "ClientConfig ConsumerConfig ProducerConfig",
            "consumer.consumer": "Consumer",
            "fetch.batches": "FetchedBatch",
            "fetch.columns": "FetchedColumns",
            "fetch.first_fetches": "FirstFetches",
            "fetch.range_reader": "RangeReader",
            "fetch.records": "ConsumerRecord",
            "producer.acknowledgements": "AppendedRange RecordFuture RecordMetadata",
            "producer.failures": "FailedRecords",
            "producer.interceptors": "ProducerInterceptor",
            "producer.producer": "Producer",
            "writes.atomic_write": "AtomicWrites Commit Repetition StagedTask WriteIdentity",
            "writes.content": "WriteInputs",
        },
    )

__all__ = [
    "Acks",
    "Admin",
    "AppendedRange",
    "AsyncConsumer",
    "AsyncProducer",
    "AtOffset",
    "AtTimestamp",
    "AtomicWrites",
    "Bootstrap",
    "BrokerDescription",
    "BrokerLoad",
    "ClientConfig",
    "Cluster",
    "ClusterDescription",
    "Commit",
    "Compression",
    "Consumer",
    "ConsumerConfig",
    "ConsumerRecord",
    "Earliest",
    "FailedRecords",
    "FetchedBatch",
    "FetchedColumns",
    "FirstFetches",
    "GroupDescription",
    "GroupPosition",
    "GroupRewind",
    "LastDuration",
    "LastRecords",
    "Latest",
    "MoveDescription",
    "MovePlan",
    "OffsetRange",
    "OffsetSpec",
    "PartitionDescription",
    "PartitionEnds",
    "PlannedMove",
    "Producer",
    "ProducerConfig",
    "ProducerInterceptor",
    "RangeReader",
    "RecordFuture",
    "RecordMetadata",
    "Repetition",
    "SchemaDescription",
    "StagedTask",
    "TopicAlteration",
    "TopicDescription",
    "TopicPartition",
    "WriteIdentity",
    "WriteInputs",
]
