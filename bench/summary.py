"""A table of all programs' ratios in short: for each thing that users do, the medians of its rows,
from the lowest to the highest. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from bench.markdown import table
from bench.paper.report import ARROW
from bench.result import LOGBUS, Compared, Ratios
from bench.spark.rows import (
    ALL_COLUMNS,
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    FLUSHED,
    KAFKA_TUNED,
    VALUE_ONLY,
    WRITTEN,
)
from bench.typed.rows import ALL, FEW_OF_ALL, FROM_AVRO, LOGBUS_AVRO, TYPED

SIZES: Final = "sizes"
"""Ratios of what records take, below 1 where it is less, stand beside those of programs."""

_ANY: Final = "*"


class Rows(NamedTuple):
    """Ratios of a program by patterns of names, as those of files."""

    program: str
    row: str = _ANY
    what: str = _ANY
    own: str = LOGBUS
    beside: str = _ANY

    def of(self, known: Mapping[str, Ratios]) -> dict[Compared, float]:
        """Their medians."""
        patterns = self[1:]
        return {
            compared: found.median
            for compared, found in known.get(self.program, {}).items()
            if all(map(fnmatchcase, compared, patterns))
        }


class Line(NamedTuple):
    """One of the table, of several parts."""

    what: str
    beside: str
    parts: Sequence[Rows]
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
        Rows("spark", what=ALL_COLUMNS, beside="Kafka"),
        Rows("spark", what=ALL_COLUMNS, beside=KAFKA_TUNED)], _BATCHES),
    Line("Spark reads the values", _SAME, [
        Rows("spark", what=VALUE_ONLY, beside="Kafka"),
        Rows("spark", what=VALUE_ONLY, beside=KAFKA_TUNED)], _SAME),
    Line("Spark reads 3 of 19 typed columns", "Kafka's source and `from_json`; tuned", [
        Rows("typed", "k", own=TYPED, beside="Kafka, from_json"),
        Rows("typed", "k", own=TYPED, beside="Kafka tuned, from_json")], _TYPED),
    Line("", "Kafka's source and `from_avro`; tuned", [
        Rows("typed", "k", own=TYPED, beside="Kafka, from_avro"),
        Rows("typed", "k", own=TYPED, beside="Kafka tuned, from_avro")], _SAME),
    Line("Spark reads all 19; encoded as `avro`", "logbus's source and `from_avro`", [
        Rows("typed", "d", f"{_ANY}, {ALL}", TYPED, FROM_AVRO),
        Rows("typed", "d", f"{_ANY}, {ALL}", LOGBUS_AVRO, FROM_AVRO)], _SAME),
    Line("Spark reads 3 of 19; encoded as `avro`", _SAME, [
        Rows("typed", "d", f"{_ANY}, {FEW_OF_ALL}", TYPED, FROM_AVRO),
        Rows("typed", "d", f"{_ANY}, {FEW_OF_ALL}", LOGBUS_AVRO, FROM_AVRO)], _SAME),
    Line("Spark writes to the page cache", "Kafka's sink; tuned", [
        Rows("spark", what=WRITTEN, own=AT_LEAST_ONCE, beside="Kafka"),
        Rows("spark", what=WRITTEN, own=AT_LEAST_ONCE, beside=KAFKA_TUNED)], _BATCHES),
    Line("Spark writes to the disk; exactly once", "Kafka's sink, tuned, at least once", [
        Rows("spark", what=FLUSHED, own=AT_LEAST_ONCE, beside=KAFKA_TUNED),
        Rows("spark", what=FLUSHED, own=EXACTLY_ONCE, beside=KAFKA_TUNED)], _SAME),
    Line("micro-batches of 5,000 and 50,000 records/s; age of their records", "Kafka's source", [
        Rows("stream", what="*`noop`"), Rows("stream", what="*`foreachBatch`"),
        Rows("stream", what="age*")],
        "[`noop`; `foreachBatch`; age]"
        "(#how-long-is-a-micro-batch-and-how-old-are-its-records-at-the-sink)"),
    Line("micro-batches of other shapes; age", _SAME, [
        Rows("stream", what="*, micro-batch"), Rows("stream", what="*, age*")],
        "[{} cases](#and-of-records-of-other-shapes)"),
    Line("start of a stream", _SAME, [Rows("stream", "start", beside="Kafka")],
         "[1,000 records](#how-long-does-a-stream-take-to-start)"),
    Line("one `availableNow` query", _BOTH, [
        Rows("stream", "available-now", beside="Kafka"),
        Rows("stream", "available-now", beside=KAFKA_TUNED)],
        "[4,000,000 records](#how-fast-is-a-backlog-read)"),
    Line("`send`; 50 records a record batch", "librdkafka", [
        Rows("clients", "send"), Rows("clients", "send-50")], f"[producers]{_CLIENTS}"),
    Line("`send_many`; `send_arrow` of 50", _SAME, [
        Rows("clients", "send-many"), Rows("clients", "send-arrow-50")], _SAME),
    Line("`send` that waits for each record, in the page cache; on disk", _SAME, [
        Rows("clients", "one-written"), Rows("clients", "one-flushed")], _SAME),
    Line("the consumer's iterator", "Kafka's Java; librdkafka", [
        Rows("clients", "iterate", beside="Kafka*"),
        Rows("clients", "iterate", beside="librdkafka")], f"[consumers]{_CLIENTS}"),
    Line("`poll_arrow`", "Kafka's Java", [Rows("clients", "poll-arrow*", beside="Kafka*")], _SAME),
    Line("a producer of 10 million records", "Kafka's Java; librdkafka", [
        Rows("peers", what="producer", beside="Kafka"),
        Rows("peers", what="producer", beside="Kafka, librdkafka")],
        "[{} experiments](#how-fast-does-a-producer-send)"),
    Line("", "RabbitMQ's streams; by columns", [
        Rows("peers", what="producer", beside="RabbitMQ, stream"),
        Rows("peers", what="producer", own=ARROW, beside="RabbitMQ, stream")], "{}"),
    Line("", "RabbitMQ; ActiveMQ, both by their older protocols", [
        Rows("peers", what="producer", beside="RabbitMQ, *t"),
        Rows("peers", what="producer", beside="ActiveMQ")], "{}"),
    Line("a consumer of them", "Kafka's Java; librdkafka", [
        Rows("peers", what="consumer", beside="Kafka"),
        Rows("peers", what="consumer", beside="Kafka, librdkafka")],
        "[{} experiments](#how-fast-does-a-consumer-read)"),
    Line("", "RabbitMQ's streams; by columns", [
        Rows("peers", what="consumer", beside="RabbitMQ, stream"),
        Rows("peers", what="consumer", own=ARROW, beside="RabbitMQ, stream")], "{}"),
    Line("bytes beside the value on disk, times as many", "Kafka's", [
        Rows(SIZES, beside="Kafka")],
        "[record batches](#what-does-a-record-take-on-disk) of all to 1"),
    Line("records to 1 to 1,000 partitions, by `send`", "librdkafka", [
        Rows("scaling", "partitions *", "MB/s produced")], _SCALING),
    Line("a topic of 1,000 partitions until usable", "Kafka", [
        Rows("scaling", "partitions 1000", "s until usable")], _SAME),
    Line("start of its broker: stopped; killed", _SAME, [
        Rows("scaling", "partitions 1000", "s to start, stopped"),
        Rows("scaling", "partitions 1000", "s to start, killed")], _SAME),
)  # fmt: skip


def summary(known: Mapping[str, Ratios]) -> str:
    """Markdown, of the ratios of each program; what is behind is bold."""
    lines = []
    for line in LINES:
        parts = [part.of(known) for part in line.parts]
        if all(parts):
            shown = "; ".join(
                _shown([*part.values()], less_is_better=rows.program == SIZES)
                for part, rows in zip(parts, line.parts, strict=True)
            )
            counts = dict.fromkeys(str(len({each.row for each in part})) for part in parts)
            where = line.where.format("; ".join(counts))
            lines.append((line.what, line.beside, shown, where))
    return table(("what", "beside", "times as fast", "of"), lines)


def _shown(medians: Sequence[float], *, less_is_better: bool) -> str:
    ends: dict[str, None] = {}
    for ratio in (min(medians), max(medians)):
        text = _figure(ratio)
        shown = float(text.replace(",", ""))
        behind = shown > 1 if less_is_better else shown < 1
        ends[f"**{text}**" if behind else text] = None
    return " to ".join(ends)


def _figure(ratio: float) -> str:
    return f"{ratio:,.2f}" if ratio < 2 else f"{ratio:,.1f}" if ratio < 10 else f"{ratio:,.0f}"
