"""A cluster of ``logbus up`` that a directory secures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_logbus.cli.server.securing import Securing
from spark_logbus.security.directory import NewCluster, SecurityDirectory
from spark_logbus.security.profiles import FILE_VARIABLE


def test_nobody_else_reads_what_zookeeper_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "profiles.toml"))  # and put back
    directory = SecurityDirectory.make(
        tmp_path / "secured",
        NewCluster(profile="secured", user="admin", zookeeper="127.0.0.1:2181/logbus"),
    )
    zookeepers = tmp_path / "data" / "zookeeper"
    securing = Securing(directory)
    securing.cluster(tmp_path / "data", 1, 0)
    assert zookeepers.stat().st_mode & 0o777 == 0o700
    zookeepers.chmod(0o755)  # of a cluster from before
    securing.cluster(tmp_path / "data", 1, 0)
    assert zookeepers.stat().st_mode & 0o777 == 0o700
    assert os.environ[FILE_VARIABLE].startswith(str(directory.path))
