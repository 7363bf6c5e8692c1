"""Copies between files, with the kernel's help and without."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from spark_logbus.log import OS_FILES

DATA = os.urandom(3_000_000)


@pytest.mark.parametrize("by_kernel", [True, False])
def test_a_range_is_copied_to_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_kernel: bool
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EXDEV, "two file systems")

    if not by_kernel:
        monkeypatch.setattr(os, "copy_file_range", refuse, raising=False)
    source = OS_FILES.open(tmp_path / "source", create=True)
    source.pwrite(DATA, 0)
    target = OS_FILES.open(tmp_path / "target", create=True)
    target.pwrite(b"before", 0)
    target.copy_from(source, 1_000, 2_500_000, 6)
    assert target.pread(3_000_000, 0) == b"before" + DATA[1_000:2_501_000]


def test_a_source_that_ends_early_is_an_error(tmp_path: Path) -> None:
    source = OS_FILES.open(tmp_path / "source", create=True)
    target = OS_FILES.open(tmp_path / "target", create=True)
    source.pwrite(b"short", 0)
    with pytest.raises(OSError, match="ends early"):
        target.copy_from(source, 0, 10, 0)
