"""``logbus produce``: lines of a file or of standard input become records."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_logbus.cli.data.chunks import Chunk, Input
from spark_logbus.cli.data.publishing import InputPublisher, OwnPartitions
from spark_logbus.cli.data.record_input import (
    InputRecord,
    KeySplitter,
    TakeJson,
    parse_header,
    parse_time,
    unescaped,
)
from spark_logbus.cli.options import (
    DEFAULT_ZOOKEEPER,
    AcksName,
    CompressionName,
    Topic,
    ZooKeeper,
    connected,
    producer_config,
)
from spark_logbus.cli.output import console
from spark_logbus.errors import InvalidRequestError, LogbusError
from spark_logbus.plurals import plural

if TYPE_CHECKING:
    from spark_logbus.client import Cluster

_INTERRUPTED = 130  # as shells have it for Ctrl-C
_LAST_ANSWERS_S = 5.0


def produce(
    topic: Topic,
    files: Annotated[
        list[Path] | None, typer.Argument(help="Files of lines; default: standard input.")
    ] = None,
    whole_files: Annotated[
        bool, typer.Option("--whole-files", help="Each file is one value.")
    ] = False,
    delimiter: Annotated[
        str | None,
        typer.Option(
            "--delimiter",
            "-D",
            help="What stands between records, and all else is theirs; default: ends of lines, "
            "\\n or \\r\\n.",
        ),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator",
            "-K",
            help="What stands before the first one is the key; \\t, \\0, \\xNN and \\\\ are taken. "
            "A line without it has no key.",
        ),
    ] = None,
    json_lines: Annotated[
        bool,
        typer.Option(
            "--json",
            "-J",
            help="A line is an object with value, and optionally key, headers, partition and "
            "timestamp_us, as logbus consume --json prints it.",
        ),
    ] = False,
    key: Annotated[str | None, typer.Option("--key", "-k", help="One key for all.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", help="name=value, for all; may be given more than once."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", help="All of them go there.", min=0)
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(
            "--timestamp", help="Of all: milliseconds since 1970, or a moment with its zone."
        ),
    ] = None,
    tombstones: Annotated[
        bool, typer.Option("--tombstones", "-Z", help="An empty value is null.")
    ] = False,
    compression: CompressionName = "none",
    acks: AcksName = None,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
) -> None:
    """Publish one record for each line. Ctrl-C ends it, and tells how many were published.

    Values of a topic with a schema are JSON, as logbus consume prints them.

    \b
    Example:
      logbus produce orders orders.tsv -K '\\t' -H source=backfill
    """
    from spark_logbus.client import Admin, Producer

    keys = None if key_separator is None else KeySplitter(key_separator)
    chunks = Input(
        files or [],
        whole_files=whole_files,
        delimiter=None if delimiter is None else unescaped(delimiter, option="--delimiter"),
        keys=keys,
        json_lines=json_lines,
        for_all=InputRecord(
            value=None,
            key=None if key is None else os.fsencode(key),
            headers=tuple(map(parse_header, header or ())),
            partition=partition,
            timestamp_us=None if timestamp is None else parse_time(timestamp),
        ),
        tombstones=tombstones,
    )
    config = producer_config(acks, compression)
    own_partitions = OwnPartitions()
    started = time.monotonic()
    with (
        connected(zookeeper) as cluster,
        Producer(cluster, config, partitioner=own_partitions if json_lines else None) as producer,
        _progress() as show_count,
    ):
        # There may be no line that would miss it.
        described = Admin(cluster).describe([topic], ends=False)[topic]
        chunks.take_json = _json_taker(cluster, described.config)
        publisher = InputPublisher(producer, topic, own_partitions)
        interrupted = not _publish(publisher, chunks, show_count)
    seconds = time.monotonic() - started
    publisher.check(interrupted=interrupted)
    outcome = f"{plural(publisher.acknowledged, 'record')} to {topic} in {seconds:.1f} s."
    if interrupted:
        console(stderr=True).print(f"Interrupted: published {outcome}")
        raise typer.Exit(_INTERRUPTED)
    console(stderr=True).print(f"Published {outcome}")
    if keys is not None:
        _tell_of_keys(keys)


def _publish(
    publisher: InputPublisher, chunks: Iterable[Chunk], show_count: Callable[[int], None]
) -> bool:
    """Publishes all chunks and waits for their acknowledgements; returns False where Ctrl-C broke
    that off. An error says how many records were published before it."""
    try:
        for chunk in chunks:
            publisher.publish(chunk)
            show_count(publisher.handed_over)
        publisher.finish()
    except KeyboardInterrupt:
        try:
            publisher.finish(_LAST_ANSWERS_S)
        except KeyboardInterrupt as twice:
            console(stderr=True).print(
                f"Interrupted twice: {publisher.told}; others may be there, too."
            )
            raise typer.Exit(_INTERRUPTED) from twice
        return False
    except InvalidRequestError as error:  # of one record: what came before it is published
        publisher.finish()
        publisher.check()
        before = f"Published before it: {plural(publisher.acknowledged, 'record')}."
        raise InvalidRequestError(f"{error} {before}") from error
    except LogbusError as error:
        publisher.finish(_LAST_ANSWERS_S)
        raise type(error)(f"{error} {publisher.told}.") from error
    return True


def _tell_of_keys(keys: KeySplitter) -> None:
    """Says how many lines had no key. InvalidRequestError when none had one."""
    if not keys.without:
        return
    if keys.without == keys.lines:
        raise InvalidRequestError(
            f"No line has the key separator {keys.shown}: the records were published without keys."
        )
    console(stderr=True).print(
        f"{keys.without:,} of {keys.lines:,} lines do not have the key separator {keys.shown}, and "
        f"no key: the first is line {keys.first_without:,}."
    )


def _json_taker(cluster: Cluster, config: Mapping[str, str]) -> TakeJson | None:
    """Takes values of a topic with a schema, as the producer will; None for plain bytes."""
    from spark_logbus.topic_schemas import VALUE_ENCODING

    if VALUE_ENCODING not in config:
        return None
    from avro_columns.values.json_values import value_of_json
    from avro_columns.values.resolved_tree import parse
    from avro_columns.values.row_check import RowCheck
    from spark_logbus.client.schemas.topic import find_writer_schema, opened_registry
    from spark_logbus.schemas.avro_errors import logbus_errors

    with opened_registry(cluster, client_name="logbus-produce") as registry:
        schema = find_writer_schema(registry, config)
    assert schema is not None
    with logbus_errors:
        node = parse(schema.text)
        check = RowCheck(node)

    @logbus_errors
    def take(given: Any) -> Any:
        return None if given is None else check.take(value_of_json(node, given))

    return take


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int], None]]:
    """Takes the number of records so far, and shows it in a terminal."""
    out = console(stderr=True)
    if not out.is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with Progress(
        SpinnerColumn(),
        TextColumn("publishing"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} records"),
        TimeElapsedColumn(),
        console=out.rich(),
        transient=True,
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda count: bar.update(task, completed=count)
