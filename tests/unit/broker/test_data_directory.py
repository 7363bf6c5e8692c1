from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from spark_logbus.broker.data_directory import (
    check_identity,
    claim_identity,
    keep_private,
    remember_port,
    remembered_port,
)
from spark_logbus.errors import ConfigError, StorageError
from spark_logbus.log.disk.filesystem import OSFile


def test_a_directory_belongs_to_the_first_who_claims_it(tmp_path: Path) -> None:
    check_identity(tmp_path, 3)
    claim_identity(tmp_path, 3)
    claim_identity(tmp_path, 3)
    for claim in (check_identity, claim_identity):
        with pytest.raises(ConfigError, match=r"belongs to broker '3'.*id = 4"):
            claim(tmp_path, 4)


def test_checking_claims_nothing(tmp_path: Path) -> None:
    check_identity(tmp_path / "missing", 3)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o777, 0o700, 0o500])
def test_a_directory_is_kept_from_everybody_else(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    keep_private(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == mode & 0o700


def test_a_directory_that_stays_open_to_others_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    tmp_path.chmod(0o755)
    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(ConfigError, match=rf"not permitted.*chmod 700 {tmp_path}"):
        keep_private(tmp_path)


def test_the_port_is_remembered(tmp_path: Path) -> None:
    assert remembered_port(tmp_path) is None
    remember_port(tmp_path, 9192)
    remember_port(tmp_path, 9193)
    assert remembered_port(tmp_path) == 9193


@pytest.mark.parametrize("content", ["", "\n", "x", "-1", "0", "65536", "9192 9193", "\udcff"])
def test_a_port_file_that_holds_no_port_counts_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "broker.port").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert remembered_port(tmp_path) is None


def test_a_port_that_cannot_be_written_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remember_port(tmp_path, 9192)
    (tmp_path / "broker.port.tmp").mkdir()  # in the way, as a full disk is
    remember_port(tmp_path, 9192)
    assert not caplog.records, "nothing is to be written"
    remember_port(tmp_path, 9193)
    assert "may take another port" in caplog.text
    assert remembered_port(tmp_path) == 9192


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_file: OSFile) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(OSFile, "sync", refuse)
    with pytest.raises(StorageError, match="No space left"):
        claim_identity(tmp_path, 3)
    assert list(tmp_path.iterdir()) == []


def test_disk_errors_are_translated(tmp_path: Path) -> None:
    (tmp_path / "broker.port").mkdir()
    with pytest.raises(StorageError, match=r"broker\.port"):
        remembered_port(tmp_path)
    with pytest.raises(StorageError, match=r"broker\.port"):
        remember_port(tmp_path, 1)
