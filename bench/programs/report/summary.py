"""Declares the table in short: for each thing that users do, how many times as fast logbus is as
others, from the lowest row to the highest. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from bench.kit.comparing import Ask, Known
from bench.kit.markdown import ends, table
from bench.programs.peers.measuring import ARROW, DISK
from bench.programs.spark.rows import (
    ALL_COLUMNS,
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    FLUSHED,
    KAFKA_TUNED,
    VALUE_ONLY,
    WRITTEN,
)
from bench.programs.stream.rows import SHAPED_PATTERN
from bench.programs.typed.rows import ALL, FEW_OF_ALL, FROM_AVRO, LOGBUS_AVRO, TYPED


class Line(NamedTuple):
    """Line of the table in short, of one or several parts."""

    what: str
    beside: str
    parts: Sequence[Ask]
    where: str
    """A link to all of them, as Markdown; ``{}`` is the number of their rows."""


_BATCHES: Final = "[{} shapes](#how-fast-does-spark-read-and-write-a-topic)"
_CLIENTS: Final = "(#clients-beside-librdkafka-and-kafkas-java)"
_TYPED: Final = "[flights](#topics-with-a-schema)"
_SCALING: Final = "[scaling.md](scaling.md)"
_SAME: Final = "the same"
_BOTH: Final = "Kafka's source; tuned"

LINES: Final = (
    Line("Spark reads all columns", _BOTH, [
        Ask("spark", what=ALL_COLUMNS, beside="Kafka"),
        Ask("spark", what=ALL_COLUMNS, beside=KAFKA_TUNED)], _BATCHES),
    Line("Spark reads the values", _SAME, [
        Ask("spark", what=VALUE_ONLY, beside="Kafka"),
        Ask("spark", what=VALUE_ONLY, beside=KAFKA_TUNED)], _SAME),
    Line("Spark reads 3 of 19 typed columns", "Kafka's source and `from_json`; tuned", [
        Ask("typed", "k", own=TYPED, beside="Kafka, from_json"),
        Ask("typed", "k", own=TYPED, beside="Kafka tuned, from_json")], _TYPED),
    Line("", "Kafka's source and `from_avro`; tuned", [
        Ask("typed", "k", own=TYPED, beside="Kafka, from_avro"),
        Ask("typed", "k", own=TYPED, beside="Kafka tuned, from_avro")], _SAME),
    Line("Spark reads all 19; encoded as `avro`", "logbus's source and `from_avro`", [
        Ask("typed", "d", f".*, {ALL}", TYPED, FROM_AVRO),
        Ask("typed", "d", f".*, {ALL}", LOGBUS_AVRO, FROM_AVRO)], _SAME),
    Line("Spark reads 3 of 19; encoded as `avro`", _SAME, [
        Ask("typed", "d", f".*, {FEW_OF_ALL}", TYPED, FROM_AVRO),
        Ask("typed", "d", f".*, {FEW_OF_ALL}", LOGBUS_AVRO, FROM_AVRO)], _SAME),
    Line("Spark writes to the page cache", "Kafka's sink; tuned", [
        Ask("spark", what=WRITTEN, own=AT_LEAST_ONCE, beside="Kafka"),
        Ask("spark", what=WRITTEN, own=AT_LEAST_ONCE, beside=KAFKA_TUNED)], _BATCHES),
    Line("Spark writes to the disk; exactly once", "Kafka's sink, tuned, at least once", [
        Ask("spark", what=FLUSHED, own=AT_LEAST_ONCE, beside=KAFKA_TUNED),
        Ask("spark", what=FLUSHED, own=EXACTLY_ONCE, beside=KAFKA_TUNED)], _SAME),
    Line("micro-batches of 5,000 and 50,000 records/s; age of their records", "Kafka's source", [
        Ask("stream", "noop", "micro-batch", beside="Kafka"),
        Ask("stream", "foreach|foreach-fast", "micro-batch", beside="Kafka"),
        Ask("stream", "foreach|foreach-fast", "age.*", beside="Kafka")],
        "[`noop`; `foreachBatch`; age]"
        "(#how-long-is-a-micro-batch-and-how-old-are-its-records-at-the-sink)"),
    Line("micro-batches of other shapes; age", _SAME, [
        Ask("stream", SHAPED_PATTERN, "micro-batch", beside="Kafka"),
        Ask("stream", SHAPED_PATTERN, "age.*", beside="Kafka")],
        "[{} cases](#how-long-is-a-micro-batch-and-how-old-are-its-records-at-the-sink)"),
    Line("start of a stream", _SAME, [Ask("stream", "start", beside="Kafka")],
         "[1,000 records](#how-fast-do-streams-start-and-catch-up)"),
    Line("one `availableNow` query", _BOTH, [
        Ask("stream", "available-now", beside="Kafka"),
        Ask("stream", "available-now", beside=KAFKA_TUNED)],
        "[4,000,000 records](#how-fast-do-streams-start-and-catch-up)"),
    Line("`send`; 50 records a record batch", "librdkafka", [
        Ask("clients", "send", ""), Ask("clients", "send-50", "")], f"[producers]{_CLIENTS}"),
    Line("`send_many`; `send_arrow` of 50", _SAME, [
        Ask("clients", "send-many", ""), Ask("clients", "send-arrow-50", "")], _SAME),
    Line("`send` that waits for each record, in the page cache; on disk", _SAME, [
        Ask("clients", "one-written", ""), Ask("clients", "one-flushed", "")], _SAME),
    Line("the consumer's iterator", "Kafka's Java; librdkafka", [
        Ask("clients", "iterate", "", beside="Kafka.*"),
        Ask("clients", "iterate", "", beside="librdkafka")], f"[consumers]{_CLIENTS}"),
    Line("`poll_arrow`", "Kafka's Java", [
        Ask("clients", "poll-arrow.*", "", beside="Kafka.*")], _SAME),
    Line("a producer of 10 million records", "Kafka's Java; librdkafka", [
        Ask("peers", what="producer", beside="Kafka"),
        Ask("peers", what="producer", beside="Kafka, librdkafka")],
        "[{} experiments](#how-fast-does-a-producer-send)"),
    Line("", "RabbitMQ's streams; by columns", [
        Ask("peers", what="producer", beside="RabbitMQ, stream"),
        Ask("peers", what="producer", own=ARROW, beside="RabbitMQ, stream")], "{}"),
    Line("", "RabbitMQ; ActiveMQ, both by their older protocols", [
        Ask("peers", what="producer", beside="RabbitMQ, .*t"),
        Ask("peers", what="producer", beside="ActiveMQ")], "{}"),
    Line("a consumer of them", "Kafka's Java; librdkafka", [
        Ask("peers", what="consumer", beside="Kafka"),
        Ask("peers", what="consumer", beside="Kafka, librdkafka")],
        "[{} experiments](#how-fast-does-a-consumer-read)"),
    Line("", "RabbitMQ's streams; by columns", [
        Ask("peers", what="consumer", beside="RabbitMQ, stream"),
        Ask("peers", what="consumer", own=ARROW, beside="RabbitMQ, stream")], "{}"),
    Line("bytes beside the value on disk, the other's of logbus's", "Kafka", [
        Ask("peers", what=DISK, beside="Kafka")],
        "[record batches](#what-does-a-record-take-on-disk) of 1 to all"),
    Line("records to 1 to 1,000 partitions, by `send`", "librdkafka", [
        Ask("scaling", "partitions .*", "MB/s produced")], _SCALING),
    Line("a topic of 1,000 partitions until usable", "Kafka", [
        Ask("scaling", "partitions 1000", "s until usable")], _SAME),
    Line("start of its broker: stopped; killed", _SAME, [
        Ask("scaling", "partitions 1000", "s to start, stopped"),
        Ask("scaling", "partitions 1000", "s to start, killed")], _SAME),
)  # fmt: skip


def summary(known: Known) -> str:
    """Returns the table in short as Markdown: medians from the lowest row to the highest."""
    lines = []
    for line in LINES:
        parts = [part.of(known) for part in line.parts]
        if all(parts):
            shown = "; ".join(ends([found.ratio for found in part.values()]) for part in parts)
            counts = dict.fromkeys(str(len({each.row for each in part})) for part in parts)
            where = line.where.format("; ".join(counts))
            lines.append((line.what, line.beside, shown, where))
    return table(("what", "beside", "times as fast", "of"), lines)
