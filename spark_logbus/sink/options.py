"""The options of ``df.write`` and ``df.writeStream``, parsed once into one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark_logbus.errors import InvalidNameError, InvalidOptionError
from spark_logbus.model import Acks, Compression, check_name
from spark_logbus.spark.options import SparkOptions, zookeeper_address

KNOWN: Final = ("zookeeper", "topic", "path", "acks", "compression")

# Spark hands these of its own streaming options over with the user's.
_SPARKS_OWN: Final = ("checkpointlocation", "queryname")

# What people who come from Spark's Kafka sink write, and what to write here.
_FOREIGN: Final = {
    "kafka.bootstrap.servers": "zookeeper",
    "bootstrap.servers": "zookeeper",
    "kafka.acks": "acks",
    "kafka.compression.type": "compression",
    "compression.type": "compression",
    "subscribe": "topic",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of one write."""

    #: Connect string, with the chroot after a slash.
    zookeeper: str
    #: Topic of every row, whatever the column ``topic`` says; None leaves it to the column.
    topic: str | None = None
    #: A task ends when this is done with its appends.
    acks: Acks = Acks.FLUSHED
    #: Compression of the record batches.
    compression: Compression = Compression.NONE


def parse_options(options: Mapping[str, str], *, overwrite: bool) -> SinkOptions:
    """All options of a write; InvalidOptionError names the one that is wrong, and the remedy."""
    given = SparkOptions(options)
    given.refuse_unknown(KNOWN, foreign=_FOREIGN, of="sink", pass_over=_SPARKS_OWN)
    if overwrite:
        raise InvalidOptionError(
            "A log is appended to and never overwritten; use .mode('append'), or a topic of "
            "another name. (Output mode complete of a stream means overwrite; for it, write from "
            "foreachBatch.)"
        )
    topic = _topic(given)
    zookeeper = zookeeper_address(given.text("zookeeper"))
    acks = given.choice("acks", [acks.value for acks in Acks], default=Acks.FLUSHED.value)
    kinds = [kind.name.lower() for kind in Compression]
    compression = given.choice("compression", kinds, default=Compression.NONE.name.lower())
    return SinkOptions(
        zookeeper=zookeeper,
        topic=topic,
        acks=Acks(acks),
        compression=Compression[compression.upper()],
    )


def _topic(given: SparkOptions) -> str | None:
    topic, path = given.text("topic"), given.text("path")
    if topic is not None and path is not None and topic != path:
        raise InvalidOptionError(
            f"Give either save({path!r}), which means topic, or the option topic, not both."
        )
    chosen = topic if topic is not None else path
    if chosen is not None:
        try:
            check_name("topic", chosen)
        except InvalidNameError as error:
            raise InvalidOptionError(f"Option topic: {error.message}") from error
    return chosen
