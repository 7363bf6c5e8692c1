"""A reader that maps the files of brokers on this machine, and compares all that it reads.

``mapped_reader_program.py zookeeper records``. It reads all of them again and again, until its
input ends. What it has read first stays mapped and is compared each time; a second reader has read
one record batch before, and reads the rest when the input has ended. To each line of input it
answers how often it has read all, and how many parts of files it has mapped.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from unittest.mock import patch

from spark_logbus.client import Cluster, RangeReader, mapped_file
from spark_logbus.client.fetch import range_reader
from spark_logbus.client.fetch.batches import FetchedBatch
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.wire.passed_file import PassedFile

T0 = TopicPartition("t", 0)


def value(number: int) -> bytes:
    return b"%07d" % number * 28


class Passes:
    """Counts what was read so far, and compares it."""

    def __init__(self, records: int) -> None:
        self.records = records
        self.expected = [value(number) for number in range(records)]
        self.whole = 0
        self.mapped = 0

    def map(self, file: PassedFile, position: int, length: int) -> memoryview:
        """Maps a part of a file, and counts it."""
        view = mapped_file.mapped(file, position, length)
        self.mapped += 1
        return view

    def check(self, batches: Iterable[FetchedBatch]) -> None:
        """Compares record batches, from the first offset to the last."""
        position = 0
        for one in batches:
            assert one.base_offset == position
            values = one.arrow_batch.column("value").to_pylist()
            assert values == self.expected[position : one.next_offset], f"torn behind {position}"
            position = one.next_offset
        assert position == self.records


def main() -> None:
    zookeeper, records = sys.argv[1], int(sys.argv[2])
    passes, ended = Passes(records), threading.Event()

    def answer() -> None:
        for _ in sys.stdin:
            say(f"{passes.whole} {passes.mapped}")
        ended.set()

    whole = OffsetRange(T0, 0, records)
    with (
        patch.object(range_reader, "mapped", passes.map),
        Cluster.from_zookeeper(zookeeper) as cluster,
    ):
        slow = RangeReader(cluster, whole)
        first = next(slow)
        kept = list(RangeReader(cluster, whole))
        threading.Thread(target=answer, daemon=True).start()
        while not ended.is_set():
            passes.check(RangeReader(cluster, whole))
            passes.check(kept)
            passes.whole += 1
        passes.check([first, *slow])
    say("all read")


def say(words: str) -> None:
    sys.stdout.write(words + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
