"""Files in place of bytes: mapping them, and what becomes of their descriptors."""

from __future__ import annotations

import array
import mmap
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_logbus.client.transport import mapped_file as module
from spark_logbus.client.transport.mapped_file import MappedFile, passed_file
from tests.helpers import is_open, name_of_descriptor, open_files

PAGE = os.sysconf("SC_PAGE_SIZE")
CONTENT = os.urandom(3 * PAGE + 100)


@pytest.fixture(autouse=True)
def _no_descriptor_is_left(no_collector: None, tmp_path: Path) -> Iterator[None]:
    yield
    assert open_files(tmp_path) == []


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / "segment"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def passed(segment: Path) -> Callable[[], MappedFile]:
    return lambda: MappedFile(os.open(segment, os.O_RDONLY))


@pytest.mark.parametrize(
    ("position", "length"),
    [
        (0, 1),
        (0, len(CONTENT)),
        (8, PAGE),
        (PAGE - 1, 2),
        (PAGE, PAGE),
        (3 * PAGE, 100),
        (3 * PAGE + 99, 1),
    ],
)
def test_a_part_of_a_file_is_mapped(
    passed: Callable[[], MappedFile], position: int, length: int
) -> None:
    view = passed().map(position, length)
    assert view.readonly
    assert bytes(view) == CONTENT[position : position + length]


def test_a_mapping_outlives_its_file(passed: Callable[[], MappedFile], segment: Path) -> None:
    file = passed()
    view = file.map(PAGE, 10)
    del file
    segment.unlink()
    part = view[2:4]
    del view
    assert bytes(part) == CONTENT[PAGE + 2 : PAGE + 4]


@pytest.mark.parametrize(
    ("position", "length"), [(0, len(CONTENT) + 1), (3 * PAGE, 101), (1 << 40, 1), (1 << 63, 8)]
)
def test_what_the_file_does_not_hold_is_an_error(
    passed: Callable[[], MappedFile], position: int, length: int
) -> None:
    with pytest.raises(OSError, match="does not hold"):
        passed().map(position, length)


def test_a_file_that_is_cut_while_it_is_mapped_is_an_error(
    passed: Callable[[], MappedFile], segment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_in = module._read_in

    def cut_first(mapping: mmap.mmap) -> None:
        os.truncate(segment, PAGE)
        read_in(mapping)

    monkeypatch.setattr(module, "_read_in", cut_first)
    with pytest.raises(OSError, match="Bad address"):
        passed().map(0, len(CONTENT))


def test_mapping_works_without_read_ahead(
    passed: Callable[[], MappedFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MADV_POPULATE_READ", 0x7000)
    assert bytes(passed().map(5, 20)) == CONTENT[5:25]


def test_a_process_has_so_many_mappings_and_no_more(
    passed: Callable[[], MappedFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_MAPPINGS", 3)
    views = [passed().map(0, 10) for _ in range(3)]
    with pytest.raises(OSError, match="3 mappings are in use"):
        passed().map(0, 10)
    views.pop()
    passed().map(0, 10)


def test_a_file_that_cannot_be_mapped_is_an_error() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    pipe = name_of_descriptor(reading)
    with pytest.raises(OSError, match="No such device"):
        MappedFile(reading).map(0, 10)
    assert not is_open(pipe)


def test_of_several_descriptors_one_is_kept(segment: Path) -> None:
    here, there = socket.socketpair()
    with here, there:
        for count in (0, 1, 3):
            opened = [os.open(segment, os.O_RDONLY) for _ in range(count)]
            if opened:
                socket.send_fds(here, [b"x"], opened)
            else:
                here.send(b"x")
            for descriptor in opened:
                os.close(descriptor)
            _, ancillary, _, _ = there.recvmsg(1, 1_000, socket.MSG_CMSG_CLOEXEC)
            file = passed_file(ancillary)
            assert (file is not None) == (count > 0)
            assert len(open_files(segment)) == min(count, 1)
            del file
            assert open_files(segment) == []


def test_what_is_no_descriptor_is_passed_over() -> None:
    credentials = array.array("i", [1, 2, 3]).tobytes()
    assert passed_file([(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials)]) is None
    assert passed_file([(socket.SOL_SOCKET, socket.SCM_RIGHTS, b"\x01\x00")]) is None
