"""``logbus produce``: lines of a file or of standard input become records."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from spark_logbus.cli.options import DEFAULT_ZOOKEEPER, ZooKeeper, connected
from spark_logbus.cli.output import console, plural

if TYPE_CHECKING:
    from spark_logbus.client import RecordFuture

_INTERRUPTED = 130  # as shells have it for Ctrl-C
_LAST_ANSWERS_S = 5.0


def produce(
    topic: str,
    file: Annotated[
        Path | None, typer.Argument(help="A text file; default: standard input.")
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            help="What stands before the first one is the key; \\t, \\0, \\xNN and \\\\ are taken. "
            "A line without it has no key."
        ),
    ] = None,
    acks: Annotated[str, typer.Option(help="none, written or flushed.")] = "flushed",
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
) -> None:
    """Publish one record for each line. Ctrl-C ends it, and tells how many were published."""
    from spark_logbus.client import Admin, Producer, ProducerConfig
    from spark_logbus.errors import ConfigError, RequestTimeoutError
    from spark_logbus.model import Acks

    if acks not in {kind.value for kind in Acks}:
        raise ConfigError(f"--acks is {acks!r}; use none, written or flushed.")
    keys = _Keys(key_separator)
    fates = _Fates()
    count = 0
    interrupted = False
    started = time.monotonic()
    with (
        connected(zookeeper) as cluster,
        Producer(cluster, ProducerConfig(acks=Acks(acks))) as producer,
        _lines(file) as lines,
        _progress() as progress,
    ):
        Admin(cluster).describe([topic], ends=False)  # there may be no line that would miss it
        task = progress.add_task("publishing", total=None)
        try:
            for line in lines:
                key, value = keys.split(line.rstrip(b"\r\n"))
                producer.send(topic, value, key=key).add_done_callback(fates.settle)
                count += 1
                if count % 1000 == 0:
                    progress.update(task, completed=count)
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
    seconds = time.monotonic() - started
    fates.check(count, interrupted=interrupted)
    published = f"ublished {plural(fates.acknowledged, 'record')} to {topic} in {seconds:.1f} s."
    if interrupted:
        console(stderr=True).print(f"Interrupted: p{published}")
        raise typer.Exit(_INTERRUPTED)
    console(stderr=True).print(f"P{published}")
    keys.check()


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


class _Keys:
    """Cuts lines into key and value, and counts those that have no key."""

    def __init__(self, given: str | None) -> None:
        self._shown = "'{}'".format((given or "").replace("\t", "\\t"))
        self._separator = None if given is None else _unescaped(given)
        self._lines = 0
        self._without = 0
        self._first_without = 0

    def split(self, line: bytes) -> tuple[bytes | None, bytes]:
        if self._separator is None:
            return None, line
        self._lines += 1
        key, found, value = line.partition(self._separator)
        if found:
            return key, value
        self._without += 1
        self._first_without = self._first_without or self._lines
        return None, line

    def check(self) -> None:
        """Say how many lines had no key. InvalidRequestError when none had one."""
        from spark_logbus.errors import InvalidRequestError

        if not self._without:
            return
        if self._without == self._lines:
            raise InvalidRequestError(
                f"No line has the key separator {self._shown}: the records were published "
                "without keys."
            )
        console(stderr=True).print(
            f"{self._without:,} of {self._lines:,} lines do not have the key separator "
            f"{self._shown}, and no key: the first is line {self._first_without:,}."
        )


def _unescaped(text: str) -> bytes:
    """The separator that is meant: in single quotes, shells leave a backslash as it is."""
    from spark_logbus.errors import ConfigError

    def meant(found: re.Match[bytes]) -> bytes:
        known = {b"\\t": b"\t", b"\\0": b"\0", b"\\\\": b"\\"}
        if found[0].startswith(b"\\x") and len(found[0]) == 4:
            return bytes.fromhex(found[0][2:].decode())
        if found[0] not in known:
            raise ConfigError(
                f"--key-separator is {text!r}; behind a backslash use t (a tab), 0, xNN, or "
                "another backslash."
            )
        return known[found[0]]

    # As the shell gave it: xNN is a byte, and what is no UTF-8 is taken too.
    separator = re.sub(rb"\\(?:x[0-9A-Fa-f]{2}|.|$)", meant, os.fsencode(text))
    if not separator or b"\n" in separator:
        raise ConfigError(f"--key-separator is {text!r}; use a character that stands in a line.")
    return separator


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
