"""``logbus consume``: print records."""

from __future__ import annotations

import re
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from functools import lru_cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from spark_logbus.cli.data.record_format import Show, as_json, by_format, value_line, with_metadata
from spark_logbus.cli.data.until_now import Wanted, spans, until_now
from spark_logbus.cli.options import DEFAULT_ZOOKEEPER, AsJson, Topics, ZooKeeper, connected
from spark_logbus.errors import InvalidRequestError, UnknownTopicError
from spark_logbus.programs import reader_is_gone
from spark_logbus.times import parse_moment_us

if TYPE_CHECKING:
    from avro_columns.values.resolved_tree import Node
    from spark_logbus.client import Admin, Cluster, ConsumerRecord, FetchedBatch, TopicDescription
    from spark_logbus.model import OffsetSpec, TopicPartition

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_PATIENCE_MS: Final = 4_000  # with a broker that is away, before the others' records are read


def consume(
    topics: Topics,
    regex: Annotated[
        bool, typer.Option("--regex", "-r", help="Topics are regular expressions for whole names.")
    ] = False,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", help="Only this partition.")
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--start",
            "-o",
            help="earliest, latest, an offset, -1000 (records before the end), '-10 minutes', or a "
            "time such as 2026-01-31T12:00Z.",
        ),
    ] = "earliest",
    limit: Annotated[
        int | None, typer.Option("--max", "-n", help="Stop after so many records.", min=1)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-F", help="Wait for new records.")] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            help="Share the topics with this consumer group, go on where it stands, and commit.",
        ),
    ] = None,
    record_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            help=r"As kcat's: %s value, %k key, %h headers, %t topic, %p partition, %o offset, %T "
            r"timestamp in ms, %S and %K lengths, -1 for null; \n, \t, \x41.",
        ),
    ] = None,
    json_lines: AsJson = False,
    metadata: Annotated[
        bool,
        typer.Option(
            "--metadata", "-m", help="Partition, offset, timestamp and key before each value."
        ),
    ] = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
) -> None:
    """Print the records of topics: those that are there, or with --follow also new ones.

    Values that have a schema are printed as JSON.

    \b
    Example:
      logbus consume orders -o -10 -f '%p %o %k %s\\n'
    """
    from spark_logbus.client import Admin, ClientConfig
    from spark_logbus.client.fetch.records import records_of

    def shown(batch: FetchedBatch) -> Iterable[ConsumerRecord]:
        return _with_json(records_of(batch), batch.value_schema)

    reader: Iterator[Iterable[ConsumerRecord]]
    show = _show(record_format, json_lines=json_lines, metadata=metadata)
    spec = _start(start)
    # What cannot be read is told, and tried again when the rest has been.
    config = ClientConfig() if follow or group else ClientConfig(retry_deadline_ms=_PATIENCE_MS)
    with connected(zookeeper, config) as cluster, ExitStack() as stack:
        admin = Admin(cluster)
        if group is not None:
            _refuse_with_group(partition)
            shared = _shared(
                cluster, admin, group, topics, regex=regex, start=spec, limit=limit, follow=follow
            )
            limit = None  # it ends by itself when it is asked for more: then all was printed
            reader = stack.enter_context(closing(shared))
        else:
            names = _matching(admin, topics) if regex else topics
            wanted = [_wanted(cluster, admin, name, partition, spec) for name in names]
            batches = (
                _follow(cluster, admin, wanted)
                if follow
                else chain.from_iterable(until_now(cluster, admin, each) for each in wanted)
            )
            reader = map(shown, batches)
        try:
            _print(reader, limit, show)
        except KeyboardInterrupt:
            if not follow:  # which has no other end
                raise


def _show(record_format: str | None, *, json_lines: bool, metadata: bool) -> Show:
    if (record_format is not None) + json_lines + metadata > 1:
        raise InvalidRequestError("Choose one of --format, --json and --metadata.")
    if record_format is not None:
        return by_format(record_format)
    if json_lines:
        return as_json
    return with_metadata if metadata else value_line


def _start(text: str) -> OffsetSpec:
    from spark_logbus.model import AtTimestamp
    from spark_logbus.position_text import parse_position

    if _DATE.match(text):
        with suppress(ValueError):
            return AtTimestamp(parse_moment_us(text))
    return parse_position(text, what="--start")


def _refuse_with_group(partition: int | None) -> None:
    if partition is not None:
        raise InvalidRequestError(
            "The consumers of a group share all partitions; leave out --partition or --group."
        )


def _matching(admin: Admin, patterns: list[str]) -> list[str]:
    try:
        expression = re.compile(_any_of(patterns))
    except re.error as error:
        raise InvalidRequestError(f"{patterns} is no regular expression: {error}.") from error
    known = [topic.name for topic in admin.topics()]
    found = [name for name in known if expression.fullmatch(name)]
    if not found:
        raise UnknownTopicError(
            f"No topic matches {', '.join(patterns)}; there are: {', '.join(known) or 'none'}."
        )
    return found


def _shared(
    cluster: Cluster,
    admin: Admin,
    group: str,
    topics: list[str],
    *,
    regex: bool,
    start: OffsetSpec,
    limit: int | None,
    follow: bool,
) -> Generator[list[ConsumerRecord], None, None]:
    """Reads as a member of a group, one record at a time, so that what is committed was printed.

    Ends after ``limit`` records, and without ``follow`` at the ends of what it reads."""
    from spark_logbus.client import Consumer, ConsumerConfig
    from spark_logbus.model import Latest

    with Consumer(cluster, ConsumerConfig(group=group, start=start)) as consumer:
        consumer.subscribe(re.compile(_any_of(topics)) if regex else topics)
        assigned: list[TopicPartition] = []
        ends: dict[TopicPartition, int | None] = {}
        handed_out = 0
        while limit is None or handed_out < limit:
            if reader_is_gone(sys.stdout):
                consumer.close(failed=True)  # the last record may not have arrived
                return
            records = consumer.poll(1.0, max_records=1)
            if records:
                schema = consumer.value_schema(records[0].topic)
                yield list(_with_json(records, None if schema is None else _parsed(schema)))
                handed_out += 1
            elif not follow and consumer.assignment:
                if consumer.assignment != assigned:
                    assigned = consumer.assignment
                    ends = admin.list_offsets(dict.fromkeys(assigned, Latest()))
                if all(consumer.position(each) >= (end or 0) for each, end in ends.items()):
                    return


@lru_cache(maxsize=64)
def _parsed(schema: str) -> Node:
    from avro_columns.values.resolved_tree import parse
    from spark_logbus.schemas.avro_errors import logbus_errors

    with logbus_errors:
        return parse(schema)


def _with_json(records: Iterable[ConsumerRecord], schema: Node | None) -> Iterable[ConsumerRecord]:
    """Makes values of a schema what ``json.dumps`` takes."""
    if schema is None:
        return records
    import msgspec

    from avro_columns.values.json_values import json_of_value

    return (
        msgspec.structs.replace(record, value=json_of_value(schema, record.value))
        for record in records
    )


def _any_of(patterns: list[str]) -> str:
    return "|".join(f"(?:{pattern})" for pattern in patterns)


def _print(reader: Iterator[Iterable[ConsumerRecord]], limit: int | None, show: Show) -> None:
    out = sys.stdout.buffer
    printed = 0
    for records in reader:
        left = None if limit is None else limit - printed
        lines = [show(record) for record in islice(records, left)]
        out.writelines(lines)
        out.flush()
        printed += len(lines)
        if printed == limit:
            return


def _wanted(
    cluster: Cluster, admin: Admin, topic: str, partition: int | None, start: OffsetSpec
) -> Wanted:
    from spark_logbus.model import TopicPartition

    known = {t.name: t for t in admin.topics()}
    if topic not in known or (partition is not None and partition not in known[topic].partitions):
        wanted = topic if partition is None else f"{topic}-{partition}"
        raise UnknownTopicError(
            f"The cluster has no {wanted}; it has: {_named(known, topic)}.{cluster.what_hides}"
        )
    found = known[topic]
    numbers = sorted(found.partitions) if partition is None else [partition]
    partitions = tuple(TopicPartition(topic, number) for number in numbers)
    return Wanted(topic, found.topic_id, partitions, start, found.config)


def _named(known: Mapping[str, TopicDescription], topic: str) -> str:
    """The partitions of the topic if it is there, else all topics."""
    if topic in known:
        return ", ".join(f"{topic}-{number}" for number in sorted(known[topic].partitions))
    return ", ".join(sorted(known)) or "no topics"


def _follow(cluster: Cluster, admin: Admin, wanted: list[Wanted]) -> Iterator[FetchedBatch]:
    """The consumer warns of brokers that are away, and waits for them."""
    from spark_logbus.client import Consumer, ConsumerConfig
    from spark_logbus.model import AtOffset

    with Consumer(cluster, ConsumerConfig(start=wanted[0].start)) as consumer:
        consumer.assign(at for each in wanted for at in each.partitions)
        for each in wanted:
            if isinstance(each.start, AtOffset):
                for topic_partition, span in spans(admin, each, each.partitions).found.items():
                    consumer.seek(topic_partition, span.start)
        while not reader_is_gone(sys.stdout):  # there may be no further record to notice it by
            yield from consumer.poll_arrow(1.0)
