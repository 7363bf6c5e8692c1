"""Fuzzes recovery: a data directory is damaged file by file, then opened, read, and used.

Whatever the damage, the directory opens or says with a typed error why not, and each record batch
that is served is the very one that was appended at its offset. What was served once is served
again, also after further appends and a restart.
"""

from __future__ import annotations

import logging
import random
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path

from crc32c import crc32c

from spark_logbus.errors import (
    CorruptRecordBatchError,
    LogbusError,
    OffsetOutOfRangeError,
    UnsupportedVersionError,
)
from spark_logbus.log import LogConfig, PartitionLog
from spark_logbus.log.disk import names
from spark_logbus.model import TopicPartition
from spark_logbus.record import HEADER_SIZE, checksum, split
from spark_logbus.record import format as fmt
from tests.builders.record_batches import record_batch
from tests.fakes.disk import AllSurvives, SimulatedDisk
from tests.fakes.log_directory import TP, Broker
from tests.fuzz.harness import main

ROOT = Path("/data")
OTHER = TopicPartition("other", 3)
CONFIG = LogConfig(
    segment_bytes=2048, index_interval_bytes=300, retention_ms=None, max_record_batch_bytes=4096
)
NUMBERS = (0, 1, 2, 5, 17, 40, 41, -1, 1 << 31, (1 << 63) - 1, 1 << 63, -(1 << 63))
MOST_READS = 400
PRODUCER_AT = 56  # id, epoch and sequence in the header
# A record batch does not say of which log it is: a file that is copied there whole is believed.
FOREIGN = b"of the other log"

Image = dict[Path, bytes]
Served = dict[int, bytes]  # base offset -> payload
Change = Callable[[random.Random, Image], None]


@cache
def original() -> tuple[Image, Served]:
    """A data directory after a clean stop, and what was appended to its first log."""
    disk = SimulatedDisk()
    broker = Broker(ROOT, files=disk, config=CONFIG)
    appended: Served = {}
    for number in range(24):
        payload = b"record batch %02d" % number + bytes([number]) * (40 * (number % 7))
        payload += bytes(-len(payload) % 8)
        appended[broker.log().ends().log_end_offset] = payload
        data = record_batch(1 + number % 3, payload=payload)
        if number % 4 == 0:  # every now and then a record batch of an idempotent producer
            struct.pack_into("<qhi", data, PRODUCER_AT, number, 0, 0)
            fmt.CRC.pack_into(data, fmt.CRC_AT, checksum(data))
        broker.append(data)
    broker.log(OTHER).append_as_leader(record_batch(4, payload=FOREIGN), leader_epoch=1)
    broker.directory.close()
    return image_of(disk, ROOT), appended


def image_of(disk: SimulatedDisk, path: Path) -> Image:
    found: Image = {}
    for name in disk.names(path):
        if disk.is_directory(path / name):
            found |= image_of(disk, path / name)
        elif name != names.LOCK:
            found[path / name] = bytes(disk.data(path / name))
    return found


def disk_with(image: Image) -> SimulatedDisk:
    disk = SimulatedDisk()
    for directory in (ROOT, ROOT / str(TP), ROOT / str(OTHER)):
        disk.make_directory(directory)
    for path, data in image.items():
        disk.open(path, create=True).pwrite(data, 0)
    disk.crash(AllSurvives())
    return disk


# -- damage ---------------------------------------------------------------------------------


def damage_bytes(dice: random.Random, image: Image) -> None:
    path = dice.choice(sorted(image))
    data = bytearray(image[path])
    at = dice.randrange(len(data) + 1)
    length = dice.choice((1, 8, 24, 80, 300))
    match dice.randrange(8):
        case 0 if data:
            data[at % len(data)] ^= 1 << dice.randrange(8)
        case 1:
            del data[at:]
        case 2:
            data += dice.choice((bytes(length), dice.randbytes(length), data[at : at + length]))
        case 3:
            data[at : at + length] = bytes(min(length, len(data) - at))
        case 4:
            data[at:at] = data[at : at + length]
        case 5:
            del data[at : at + length]
        case 6:
            other = image[dice.choice(sorted(image))]
            data[at:] = other[dice.randrange(len(other) + 1) :]
        case _:
            number = dice.choice(NUMBERS) & ((1 << 64) - 1)
            data[at // 8 * 8 : at // 8 * 8 + 8] = number.to_bytes(8, "little")
    image[path] = bytes(data)


def damage_names(dice: random.Random, image: Image) -> None:
    path = dice.choice(sorted(image))
    segments = [each for each in image if names.parse_segment(each.name) is not None]
    match dice.randrange(6):
        case 0:
            del image[path]
        case 5:
            image[path.with_name(names.FLUSH_FAILED)] = b""
        case 1:
            image[path.with_name(f"{path.name}{dice.choice(('.tmp', '.deleted', 'x'))}")] = (
                image.pop(path)
            )
        case 2 if segments:
            path = dice.choice(sorted(segments))
            base = dice.choice((*NUMBERS, (names.parse_segment(path.name) or 0) + 1))
            image[path.with_name(names.segment(base))] = image.pop(path)
        case 3:
            base = dice.choice(NUMBERS)
            name = dice.choice((names.segment(base), names.index(base)))
            image[ROOT / str(TP) / name] = image[path]
        case _:
            image.pop(ROOT / names.CLEAN_SHUTDOWN, None)


def lie_in_a_text_file(dice: random.Random, image: Image) -> None:
    """Writes other numbers or words under a right checksum, as a defect of ours would."""
    text_files = [path for path in image if b"crc32c " in image[path]]
    if not text_files:
        return
    path = dice.choice(sorted(text_files))
    lines = image[path].decode("utf-8", errors="replace").splitlines()[:-1]
    if not lines:
        return
    number = dice.randrange(len(lines))
    words = lines[number].split(" ")
    words[dice.randrange(len(words))] = dice.choice((*map(str, NUMBERS), "", "x", "flights-0"))
    lines[number] = dice.choice((" ".join(words), " ".join(words[:-1]), ""))
    body = "".join(f"{line}\n" for line in lines).encode()
    image[path] = body + b"crc32c %08x\n" % crc32c(body)


CHANGES: tuple[Change, ...] = (damage_bytes, damage_bytes, damage_names, lie_in_a_text_file)


# -- what must hold -------------------------------------------------------------------------


def read_everything(log: PartitionLog) -> Served:
    """Reads all that a reader can get: verifies what comes, and steps over what it cannot read."""
    ends = log.ends()
    offset, served = ends.log_start_offset, Served()
    for _ in range(MOST_READS):
        if offset >= ends.high_watermark:
            return served
        try:
            found = log.read(offset, max_bytes=700)
            assert found is not None
            for header, data in split(found.read(), allow_tail=False):
                if not header.base_offset <= offset < header.next_offset:
                    raise CorruptRecordBatchError("a reader expects dense offsets")
                served[header.base_offset] = bytes(data[HEADER_SIZE:])
                offset = header.next_offset
        except (CorruptRecordBatchError, UnsupportedVersionError):
            hole = next((each for each in log.damaged if each.start <= offset < each.end), None)
            offset = hole.end if hole is not None else offset + 1
        except OffsetOutOfRangeError:
            offset += 1
    return served  # a lie about offsets made a hole that no test wants to walk through


def look_around(log: PartitionLog) -> None:
    ends = log.ends()
    for timestamp in (0, 1 << 62, -(1 << 63)):
        log.offset_at(timestamp)
    log.split(ends.log_start_offset, ends.high_watermark, target_bytes=500)


def attempt(dice: random.Random) -> str:
    image, appended = dict(original()[0]), original()[1]
    if dice.random() < 0.5:
        image.pop(ROOT / names.CLEAN_SHUTDOWN)
    for _ in range(dice.choice((1, 1, 2, 5))):
        if image:
            dice.choice(CHANGES)(dice, image)
    disk = disk_with(image)
    at = {payload: offset for offset, payload in appended.items()}
    try:
        broker = Broker(ROOT, files=disk, config=CONFIG)
        log = broker.directory.get(TP)
        if log is None:
            return "not opened"
        served = read_everything(log)
        for offset, payload in served.items():
            alone = offset == max(served) == unsure(log)
            told = at.get(payload, offset) if alone else offset
            assert payload in (appended.get(told), FOREIGN), f"offset {offset} was never this"
        look_around(log)
        log.append_as_leader(record_batch(2, payload=b"appended after"), leader_epoch=2)
        log.flush()
        # A segment whose damage no scan has met may be found out to be shorter or longer.
        check_again(broker, served)
        broker.restart()
        check_again(broker, served)
        disk.crash(AllSurvives())
        broker.start()
        check_again(broker, served)
    except LogbusError as error:
        return type(error).__name__
    return "whole" if len(served) == len(appended) else "partly"


def unsure(log: PartitionLog) -> int | None:
    """Offset where record batches go on behind the last damage.

    No checksum covers the offset of the one there; if it is the last, no other confirms it.
    """
    holes = log.damaged
    return holes[-1].end if holes else None


def check_again(broker: Broker, served: Served) -> None:
    log = broker.directory.get(TP)
    assert log is not None, "it could be opened before"
    again = read_everything(log)
    wrong = {offset for offset, payload in served.items() if again.get(offset) != payload}
    assert not wrong, f"what was served at {sorted(wrong)} is gone or another"


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    main(attempt)
