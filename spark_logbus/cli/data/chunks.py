"""Chunks of records out of files and standard input. No clients, no console."""

from __future__ import annotations

import contextlib
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from io import BufferedIOBase
from itertools import groupby
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from spark_logbus.cli.data.record_input import (
    Headers,
    InputRecord,
    KeySplitter,
    TakeJson,
    delimited,
    parse_json,
    parse_value,
)
from spark_logbus.errors import ConfigError, InvalidRequestError

# A chunk for each record batch that a producer cuts: larger ones save nothing more.
_CHUNK_RECORDS: Final = 1 << 16
_CHUNK_BYTES: Final = 4 << 20
# Input that never makes its reader wait is published so often all the same.
_CHUNK_S: Final = 0.1

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Records that follow each other in one source, by column; None stands for a column of None.

    ``partition`` is of all; ``partitions`` are of each, where they differ. ``first_line`` is None
    for a file that is one record.
    """

    values: Sequence[Any]
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[Headers] | None = None
    partition: int | None = None
    partitions: Sequence[int | None] | None = None
    timestamps_us: Sequence[int | None] | None = None
    source: str
    first_line: int | None = None

    def __len__(self) -> int:
        return len(self.values)

    def record(self, number: int) -> InputRecord:
        return InputRecord(
            value=self.values[number],
            key=self.keys[number] if self.keys else None,
            headers=self.headers[number] if self.headers else (),
            partition=self.partitions[number] if self.partitions else self.partition,
            timestamp_us=self.timestamps_us[number] if self.timestamps_us else None,
        )

    def where(self, number: int) -> str:
        """The place of a record, at the beginning of a sentence."""
        if self.first_line is None:
            return self.source
        return f"Line {self.first_line + number:,} of {self.source}"

    def part(self, start: int, stop: int) -> Chunk:
        return replace(
            self,
            values=self.values[start:stop],
            keys=self.keys and self.keys[start:stop],
            headers=self.headers and self.headers[start:stop],
            partitions=self.partitions and self.partitions[start:stop],
            timestamps_us=self.timestamps_us and self.timestamps_us[start:stop],
            first_line=None if self.first_line is None else self.first_line + start,
        )

    def runs(self) -> Iterator[Chunk]:
        """The chunk, cut where records that a key or a number binds to a partition and those that
        may go anywhere meet: handed over together, they would not keep their order."""
        if self.partition is not None or (self.keys is None and self.partitions is None):
            yield self
            return
        keys = self.keys or [None] * len(self)
        partitions = self.partitions or [None] * len(self)
        bound = [
            key is not None or partition is not None
            for key, partition in zip(keys, partitions, strict=True)
        ]
        start = 0
        for _, run in groupby(bound):
            stop = start + len(list(run))
            yield self.part(start, stop) if stop - start < len(self) else self
            start = stop


@dataclass(slots=True)
class Input:
    """The records of files, or of standard input, in chunks.

    A chunk ends where its reader would have to wait for more, so a slow pipe is published as it
    comes. What cannot be a record raises InvalidRequestError, after the chunk of those before it.
    """

    files: list[Path]
    _: KW_ONLY
    whole_files: bool
    delimiter: bytes | None
    keys: KeySplitter | None
    json_lines: bool
    for_all: InputRecord
    tombstones: bool
    #: Takes values that are JSON, for a topic with a schema.
    take_json: TakeJson | None = None

    def __post_init__(self) -> None:
        if self.json_lines and (self.keys is not None or self.whole_files):
            raise ConfigError("With --json, leave out --key-separator and --whole-files.")
        if self.whole_files and not self.files:
            raise ConfigError("Name the files that --whole-files is to publish.")

    def __iter__(self) -> Iterator[Chunk]:
        if not self.files:
            yield from self._chunks(cast(BufferedIOBase, sys.stdin.buffer), "standard input")
        for file in self.files:
            with _opened(file) as source:
                if self.whole_files:
                    yield from self._of_values(Chunk(values=[source.read()], source=str(file)))
                else:
                    yield from self._chunks(source, str(file))

    def _chunks(self, source: BufferedIOBase, name: str) -> Iterator[Chunk]:
        first_line = 1
        for lines in _gathered(source, self.delimiter):
            if self.json_lines:
                yield from self._parsed(lines, name, first_line)
            else:
                pairs = None if self.keys is None else list(map(self.keys.split, lines))
                chunk = Chunk(
                    values=lines if pairs is None else [value for _, value in pairs],
                    keys=None if pairs is None else [key for key, _ in pairs],
                    source=name,
                    first_line=first_line,
                )
                yield from self._of_values(chunk)
            first_line += len(lines)

    def _of_values(self, chunk: Chunk) -> Iterator[Chunk]:
        """Parses values that have a schema, and completes the chunk up to the first that is
        refused."""
        take = self.take_json
        if take is None:
            yield self._completed(chunk)
            return

        def value_of(text: bytes) -> Any:
            return None if self.tombstones and not text else parse_value(text, take)

        values, wrong = _up_to_refused(chunk.values, value_of)
        if values:
            yield self._completed(replace(chunk.part(0, len(values)), values=values))
        if wrong is not None:
            raise refused(chunk.where(len(values)), wrong) from wrong

    def _parsed(self, lines: Sequence[bytes], name: str, first_line: int) -> Iterator[Chunk]:
        records, wrong = _up_to_refused(lines, lambda line: parse_json(line, self.take_json))
        chunk = Chunk(
            values=[record.value for record in records],
            keys=[record.key for record in records],
            headers=[record.headers for record in records],
            partitions=[record.partition for record in records],
            timestamps_us=[record.timestamp_us for record in records],
            source=name,
            first_line=first_line,
        )
        if records:
            yield self._completed(chunk)
        if wrong is not None:
            raise refused(chunk.where(len(records)), wrong) from wrong

    def _completed(self, chunk: Chunk) -> Chunk:
        """Adds what is given for all records, where they do not say it themselves."""
        every, count = self.for_all, len(chunk)
        values, headers = chunk.values, chunk.headers
        if self.tombstones and self.take_json is None:
            values = [value or None for value in values]
        if every.headers:
            headers = [own + every.headers for own in headers or [()] * count]
        elif headers is not None and not any(headers):
            headers = None
        partitions = _column(chunk.partitions, every.partition, count)
        partition = partitions[0] if partitions and len(set(partitions)) == 1 else None
        return replace(
            chunk,
            values=values,
            keys=_column(chunk.keys, every.key, count),
            headers=headers,
            partition=partition,
            partitions=partitions if partition is None else None,
            timestamps_us=_column(chunk.timestamps_us, every.timestamp_us, count),
        )


def _up_to_refused(
    lines: Sequence[bytes], take: Callable[[bytes], T]
) -> tuple[list[T], InvalidRequestError | None]:
    """Takes lines up to the first that is refused; returns what was taken, and the refusal."""
    taken: list[T] = []
    for line in lines:
        try:
            taken.append(take(line))
        except InvalidRequestError as error:
            return taken, error
    return taken, None


def _column(
    own: Sequence[T | None] | None, every: T | None, count: int
) -> Sequence[T | None] | None:
    """``every``, where the records have nothing of their own; None if there is nothing at all."""
    if own is None or own.count(None) == count:
        return None if every is None else [every] * count
    return own if every is None else [every if each is None else each for each in own]


def refused(where: str, error: InvalidRequestError) -> InvalidRequestError:
    """Makes the error of a record that cannot be published, with its place."""
    return InvalidRequestError(f"{where} cannot be published. {error}")


def _gathered(source: BufferedIOBase, delimiter: bytes | None) -> Iterator[list[bytes]]:
    """Lists of parts that fill a chunk, or of what there is before the next read would wait."""
    lines: list[bytes] = []
    size, due = 0, 0.0
    for parts in delimited(source, delimiter):
        lines += parts
        if not lines:
            continue
        due = due or time.monotonic() + _CHUNK_S
        size += sum(map(len, parts))
        if (
            len(lines) >= _CHUNK_RECORDS
            or size >= _CHUNK_BYTES
            or time.monotonic() >= due
            or not _has_more(source)
        ):
            yield lines
            lines, size, due = [], 0, 0.0
    if lines:
        yield lines


def _has_more(source: BufferedIOBase) -> bool:
    """True if a read would not wait: there is something, or the end."""
    try:
        descriptor = source.fileno()
    except OSError:
        return True  # in memory
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[BufferedIOBase]:
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
