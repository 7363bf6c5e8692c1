"""Mapping files that were passed over, and what becomes of their descriptors."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_logbus.client import mapped_file as module
from spark_logbus.client.mapped_file import mapped
from spark_logbus.wire.passed_file import PassedFile
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
def passed(segment: Path) -> Callable[[], PassedFile]:
    return lambda: PassedFile(os.open(segment, os.O_RDONLY))


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
    passed: Callable[[], PassedFile], position: int, length: int
) -> None:
    view = mapped(passed(), position, length)
    assert view.readonly
    assert bytes(view) == CONTENT[position : position + length]


def test_a_mapping_outlives_its_file(passed: Callable[[], PassedFile], segment: Path) -> None:
    file = passed()
    view = mapped(file, PAGE, 10)
    del file
    segment.unlink()
    part = view[2:4]
    del view
    assert bytes(part) == CONTENT[PAGE + 2 : PAGE + 4]


@pytest.mark.parametrize(
    ("position", "length"), [(0, len(CONTENT) + 1), (3 * PAGE, 101), (1 << 40, 1), (1 << 63, 8)]
)
def test_what_the_file_does_not_hold_is_an_error(
    passed: Callable[[], PassedFile], position: int, length: int
) -> None:
    with pytest.raises(OSError, match="does not hold"):
        mapped(passed(), position, length)


def test_a_file_that_is_cut_while_it_is_mapped_is_an_error(
    passed: Callable[[], PassedFile], segment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_in = module._read_in

    def cut_first(mapping: mmap.mmap) -> None:
        os.truncate(segment, PAGE)
        read_in(mapping)

    monkeypatch.setattr(module, "_read_in", cut_first)
    with pytest.raises(OSError, match="Bad address"):
        mapped(passed(), 0, len(CONTENT))


def test_mapping_works_without_read_ahead(
    passed: Callable[[], PassedFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MADV_POPULATE_READ", 0x7000)
    assert bytes(mapped(passed(), 5, 20)) == CONTENT[5:25]


def test_a_process_has_so_many_mappings_and_no_more(
    passed: Callable[[], PassedFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_MAPPINGS", 3)
    views = [mapped(passed(), 0, 10) for _ in range(3)]
    with pytest.raises(OSError, match="3 mappings are in use"):
        mapped(passed(), 0, 10)
    views.pop()
    mapped(passed(), 0, 10)


def test_a_file_that_cannot_be_mapped_is_an_error() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    pipe = name_of_descriptor(reading)
    with pytest.raises(OSError, match="No such device"):
        mapped(PassedFile(reading), 0, 10)
    assert not is_open(pipe)
