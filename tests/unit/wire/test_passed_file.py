"""Files that are passed over, and what becomes of their descriptors."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_logbus.wire.passed_file import passed_file
from tests.helpers import open_files


@pytest.fixture(autouse=True)
def _no_descriptor_is_left(no_collector: None, tmp_path: Path) -> Iterator[None]:
    yield
    assert open_files(tmp_path) == []


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / "segment"
    path.write_bytes(b"some records")
    return path


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
