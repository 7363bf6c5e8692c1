"""The options of ``df.write`` and ``df.writeStream``, parsed once into one frozen value."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark_logbus.client import Repetition
from spark_logbus.errors import InvalidNameError, InvalidOptionError
from spark_logbus.model import Acks, Compression, check_name
from spark_logbus.spark.options import SparkOptions, cluster_address

KNOWN: Final = (
    "zookeeper", "profile", "topic", "path", "delivery", "acks", "compression", "txnAppId",
    "txnVersion", "evolve", "audit", "repetition", "checkpointLocation",
)  # fmt: skip

MAX_APP_ID_LENGTH: Final = 150

# Spark hands these of its own streaming options over with the user's.
_SPARKS_OWN: Final = ("queryname",)

# What people who come from Spark's Kafka sink write, and what to write here.
_FOREIGN: Final = {
    "kafka.bootstrap.servers": "zookeeper",
    "bootstrap.servers": "zookeeper",
    "kafka.acks": "acks",
    "kafka.compression.type": "compression",
    "compression.type": "compression",
    "subscribe": "topic",
}


class Delivery(enum.Enum):
    """Guarantee for records of a write that fails, or is done again."""

    #: Nothing of a write that fails is ever seen; a micro-batch that is done again is there once.
    EXACTLY_ONCE = "exactly-once"
    #: Records are seen as they are written, those of a task that fails and is repeated twice.
    AT_LEAST_ONCE = "at-least-once"


@dataclass(frozen=True, slots=True)
class Transaction:
    """Names a write, so that it happens once however often it is done. Versions rise."""

    app_id: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of one write."""

    #: Connect string, with the chroot after a slash.
    zookeeper: str
    #: Topic of every row, whatever the column ``topic`` says; None leaves it to the column.
    topic: str | None = None
    delivery: Delivery = Delivery.EXACTLY_ONCE
    #: A task ends when this is done with its appends; None: with all replicas, and on the disk.
    #: Where it is exactly once, that is so before the write is committed.
    acks: Acks | None = None
    #: Compression of the record batches.
    compression: Compression = Compression.NONE
    #: Columns that the topic's schema does not have make a new version of it.
    evolve: bool = False
    #: Publish how many records each commit has appended, by window of their time.
    audit: bool = False
    #: Of a batch write that may be done again.
    transaction: Transaction | None = None
    #: What becomes of a version that was committed before.
    repetition: Repetition = Repetition.CHECKED
    #: Of the streaming query whose micro-batches are written.
    checkpoint: str | None = None


def parse_options(
    options: Mapping[str, str], *, overwrite: bool, streaming: bool = False
) -> SinkOptions:
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
    zookeeper = cluster_address(given)
    ways = [way.value for way in Delivery]
    delivery = Delivery(given.choice("delivery", ways, default=Delivery.EXACTLY_ONCE.value))
    acks = None
    if given.text("acks") is not None:
        acks = Acks(given.choice("acks", [each.value for each in Acks], default=""))
    if delivery is Delivery.EXACTLY_ONCE and acks in (Acks.NONE, Acks.WRITTEN):
        raise InvalidOptionError(
            f"Option acks is {acks.value}, which may lose records, and a write is "
            f"{delivery.value} unless it says otherwise; leave acks out, or set delivery to "
            f"{Delivery.AT_LEAST_ONCE.value}."
        )
    transaction = _transaction(given, delivery, streaming=streaming)
    repetitions = [one.value for one in Repetition]
    repetition = given.choice("repetition", repetitions, default=Repetition.CHECKED.value)
    has_versions = delivery is Delivery.EXACTLY_ONCE and (streaming or transaction is not None)
    if given.text("repetition") is not None and not has_versions:
        raise InvalidOptionError(
            "Option repetition is for writes whose versions are known: a stream that is "
            f"{Delivery.EXACTLY_ONCE.value}, or a write with txnAppId and txnVersion. Leave it out."
        )
    kinds = [kind.name.lower() for kind in Compression]
    compression = given.choice("compression", kinds, default=Compression.NONE.name.lower())
    return SinkOptions(
        zookeeper=zookeeper,
        topic=topic,
        delivery=delivery,
        acks=acks,
        compression=Compression[compression.upper()],
        evolve=given.boolean("evolve", default=False),
        audit=given.boolean("audit", default=False),
        transaction=transaction,
        repetition=Repetition(repetition),
        checkpoint=given.text("checkpointLocation"),
    )


def _transaction(given: SparkOptions, delivery: Delivery, *, streaming: bool) -> Transaction | None:
    app_id, version = given.text("txnAppId"), given.number("txnVersion", least=0)
    if app_id is None and version is None:
        return None
    if app_id is None or version is None:
        there, absent = (
            ("txnAppId", "txnVersion") if version is None else ("txnVersion", "txnAppId")
        )
        raise InvalidOptionError(f"Option {there} is set and {absent} is not; set both or none.")
    if streaming:
        raise InvalidOptionError(
            "Options txnAppId and txnVersion are for batch writes, also those in foreachBatch; "
            "writeStream has its query and micro-batch for them."
        )
    if delivery is not Delivery.EXACTLY_ONCE:
        raise InvalidOptionError(
            f"Options txnAppId and txnVersion need delivery {Delivery.EXACTLY_ONCE.value}, "
            f"got {delivery.value}; leave one or the other out."
        )
    if not 0 < len(app_id) <= MAX_APP_ID_LENGTH:
        raise InvalidOptionError(
            f"Option txnAppId has {len(app_id)} characters, it takes 1 to {MAX_APP_ID_LENGTH}."
        )
    return Transaction(app_id, version)


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
