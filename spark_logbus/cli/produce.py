"""``logbus produce``: lines of a file or of standard input become records."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from spark_logbus.cli.options import DEFAULT_ZOOKEEPER, ZooKeeper, connected
from spark_logbus.cli.output import console, plural


def produce(
    topic: str,
    file: Annotated[
        Path | None, typer.Argument(help="A text file; default: standard input.")
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option(help="What stands before the first one is the key.")
    ] = None,
    acks: Annotated[str, typer.Option(help="none, written or flushed.")] = "flushed",
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
) -> None:
    """Publish one record for each line."""
    from spark_logbus.client import Producer, ProducerConfig
    from spark_logbus.errors import ConfigError
    from spark_logbus.model import Acks

    if acks not in {kind.value for kind in Acks}:
        raise ConfigError(f"--acks is {acks!r}; use none, written or flushed.")
    separator = key_separator.encode() if key_separator else None
    started = time.monotonic()
    with (
        connected(zookeeper) as cluster,
        Producer(cluster, ProducerConfig(acks=Acks(acks))) as producer,
        _lines(file) as lines,
        _progress() as progress,
    ):
        task = progress.add_task("publishing", total=None)
        count = 0
        last = None
        for line in lines:
            key, value = _split(line.rstrip(b"\r\n"), separator)
            last = producer.send(topic, value, key=key)
            count += 1
            if count % 1000 == 0:
                progress.update(task, completed=count)
        producer.flush()
        if last is not None:
            last.result()
    seconds = time.monotonic() - started
    console(stderr=True).print(
        f"Published {plural(count, 'record')} to {topic} in {seconds:.1f} s."
    )


def _split(line: bytes, separator: bytes | None) -> tuple[bytes | None, bytes]:
    if separator is None or separator not in line:
        return None, line
    key, _, value = line.partition(separator)
    return key, value


@contextlib.contextmanager
def _lines(file: Path | None) -> Iterator[BinaryIO]:
    from spark_logbus.errors import InvalidRequestError

    if file is None:
        yield sys.stdin.buffer
        return
    try:
        opened = file.open("rb")
    except OSError as error:
        raise InvalidRequestError(f"Cannot read {file}: {error.strerror}.") from error
    with opened:
        yield opened


def _progress() -> Progress:
    out = console(stderr=True)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} records"),
        TimeElapsedColumn(),
        console=out,
        disable=not out.is_terminal,
        transient=True,
    )
