"""``logbus produce``: lines of a file or of standard input become records."""

from __future__ import annotations

import contextlib
import enum
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, TypeVar

import typer

from spark_logbus.cli.options import DEFAULT_ZOOKEEPER, Topic, ZooKeeper, connected
from spark_logbus.cli.output import console, plural
from spark_logbus.cli.record_input import (
    InputRecord,
    KeySplitter,
    delimited,
    parse_header,
    parse_json,
    parse_time,
    unescaped,
)
from spark_logbus.errors import ConfigError, InvalidRequestError

if TYPE_CHECKING:
    from spark_logbus.client import RecordFuture

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
        str, typer.Option("--delimiter", "-D", help="What stands between records.")
    ] = "\\n",
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
        typer.Option("--timestamp", help="Of all: milliseconds since 1970, or a moment."),
    ] = None,
    tombstones: Annotated[
        bool, typer.Option("--tombstones", "-Z", help="An empty value is null.")
    ] = False,
    compression: Annotated[str, typer.Option(help="none, lz4 or zstd.")] = "none",
    acks: Annotated[str, typer.Option(help="none, written or flushed.")] = "flushed",
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
) -> None:
    """Publish one record for each line. Ctrl-C ends it, and tells how many were published.

    \b
    Example:
      logbus produce orders orders.tsv -K '\\t' -H source=backfill
    """
    from spark_logbus.client import Admin, Producer, ProducerConfig
    from spark_logbus.errors import RequestTimeoutError
    from spark_logbus.model import Acks, Compression

    keys = None if key_separator is None else _Keys(key_separator)
    records = _Input(
        files or [],
        whole_files=whole_files,
        delimiter=unescaped(delimiter, option="--delimiter"),
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
    config = ProducerConfig(
        acks=one_of("--acks", acks, Acks),
        compression=one_of("--compression", compression, Compression),
    )
    fates = _Fates()
    count = 0
    interrupted = False
    started = time.monotonic()
    with (
        connected(zookeeper) as cluster,
        Producer(cluster, config) as producer,
        _progress() as show_count,
    ):
        Admin(cluster).describe([topic], ends=False)  # there may be no line that would miss it
        try:
            for record in records:
                producer.send(
                    topic,
                    record.value,
                    key=record.key,
                    headers=record.headers or None,
                    partition=record.partition,
                    timestamp_us=record.timestamp_us,
                ).add_done_callback(fates.settle)
                count += 1
                if count % 1000 == 0:
                    show_count(count)
            producer.flush()
        except KeyboardInterrupt:
            interrupted = True
            try:
                producer.close(_LAST_ANSWERS_S)
            except RequestTimeoutError:
                pass  # told by the futures, too
            except KeyboardInterrupt as twice:
                console(stderr=True).print(
                    f"Interrupted twice: {fates.acknowledged:,} of {plural(count, 'record')} were "
                    f"acknowledged by {topic}; others may be there, too."
                )
                raise typer.Exit(_INTERRUPTED) from twice
        except InvalidRequestError as error:  # of one record: what came before it is published
            producer.flush()
            fates.check(count, interrupted=False)
            where = records.where
            if where is None:
                raise
            before = f"Published before it: {plural(fates.acknowledged, 'record')}."
            raise InvalidRequestError(f"{where} cannot be published. {error} {before}") from error
    seconds = time.monotonic() - started
    fates.check(count, interrupted=interrupted)
    published = f"ublished {plural(fates.acknowledged, 'record')} to {topic} in {seconds:.1f} s."
    if interrupted:
        console(stderr=True).print(f"Interrupted: p{published}")
        raise typer.Exit(_INTERRUPTED)
    console(stderr=True).print(f"P{published}")
    if keys is not None:
        keys.check()


Choice = TypeVar("Choice", bound=enum.Enum)


def one_of(option: str, given: str, choices: type[Choice]) -> Choice:
    """The choice of that name; ConfigError for another."""
    for choice in choices:
        if choice.name.lower() == given:
            return choice
    *most, last = [choice.name.lower() for choice in choices]
    raise ConfigError(f"{option} is {given!r}; use {', '.join(most)} or {last}.")


class _Input:
    """The records of files, or of standard input; ``where`` says which one was read last."""

    def __init__(
        self,
        files: list[Path],
        *,
        whole_files: bool,
        delimiter: bytes,
        keys: _Keys | None,
        json_lines: bool,
        for_all: InputRecord,
        tombstones: bool,
    ) -> None:
        if json_lines and (keys is not None or whole_files):
            raise ConfigError("With --json, leave out --key-separator and --whole-files.")
        if whole_files and not files:
            raise ConfigError("Name the files that --whole-files is to publish.")
        self._files = files
        self._whole_files = whole_files
        self._delimiter = delimiter
        self._keys = keys
        self._json_lines = json_lines
        self._for_all = for_all
        self._tombstones = tombstones
        self.where: str | None = None

    def __iter__(self) -> Iterator[InputRecord]:
        if not self._files:
            yield from self._records(sys.stdin.buffer, "standard input")
        for file in self._files:
            with _opened(file) as source:
                if self._whole_files:
                    self.where = str(file)
                    yield self._completed(InputRecord(value=source.read()))
                else:
                    yield from self._records(source, str(file))

    def _records(self, source: BinaryIO, name: str) -> Iterator[InputRecord]:
        for number, line in enumerate(delimited(source, self._delimiter), 1):
            self.where = f"Line {number:,} of {name}"
            if self._json_lines:
                yield self._completed(parse_json(line))
            elif self._keys is not None:
                key, value = self._keys.split(line)
                yield self._completed(InputRecord(value=value, key=key))
            else:
                yield self._completed(InputRecord(value=line))

    def _completed(self, record: InputRecord) -> InputRecord:
        """With what is given for all, where the record does not say it itself."""
        every = self._for_all
        return InputRecord(
            value=None if self._tombstones and not record.value else record.value,
            key=every.key if record.key is None else record.key,
            headers=record.headers + every.headers,
            partition=every.partition if record.partition is None else record.partition,
            timestamp_us=every.timestamp_us if record.timestamp_us is None else record.timestamp_us,
        )


class _Fates:
    """Counts records that were acknowledged, and reasons why others were not. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self.acknowledged = 0

    def settle(self, future: RecordFuture) -> None:
        error = future.exception()
        with self._lock:
            if error is None:
                self.acknowledged += 1
            else:
                self._error = self._error or error

    def check(self, count: int, *, interrupted: bool) -> None:
        """Raise what the first record failed with, and say how many of ``count`` are there."""
        error = self._error
        if error is None:
            return
        told = f"{self.acknowledged:,} of {plural(count, 'record')} were acknowledged."
        if interrupted:
            told = f"{told} Of the others it is not known: this was interrupted."
        raise type(error)(f"{error} {told}") from error


class _Keys(KeySplitter):
    """Tells of lines without a key."""

    def __init__(self, given: str) -> None:
        super().__init__(given)
        if "\n" in given or b"\n" in unescaped(given, option="--key-separator"):
            raise ConfigError(
                f"--key-separator is {given!r}; use a character that stands in a line."
            )

    def check(self) -> None:
        """Say how many lines had no key. InvalidRequestError when none had one."""
        if not self.without:
            return
        if self.without == self.lines:
            raise InvalidRequestError(
                f"No line has the key separator {self.shown}: the records were published "
                "without keys."
            )
        console(stderr=True).print(
            f"{self.without:,} of {self.lines:,} lines do not have the key separator "
            f"{self.shown}, and no key: the first is line {self.first_without:,}."
        )


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    try:
        opened = file.open("rb")
    except OSError as error:
        raise _unreadable(file, error) from error
    with opened:
        try:
            yield opened
        except OSError as error:
            raise _unreadable(file, error) from error


def _unreadable(file: Path, error: OSError) -> InvalidRequestError:
    return InvalidRequestError(f"Cannot read {file}: {error.strerror}.")


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
