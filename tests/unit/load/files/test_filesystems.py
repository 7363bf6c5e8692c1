"""Filesystems that a load cannot commit on, by name."""

from __future__ import annotations

import pytest

from spark_logbus.load import UnsuitableFilesystemError
from spark_logbus.load.files.hadoop import check_renames


@pytest.mark.parametrize(
    ("scheme", "named"),
    [
        ("s3a", "Amazon S3"),
        ("S3A", "Amazon S3"),
        ("gs", "Google Cloud Storage"),
        ("wasbs", "Azure Blob Storage"),
        ("abfss", "without hierarchical namespace"),
        ("oss", "Alibaba OSS"),
    ],
)
def test_stores_that_rename_by_copies_are_refused(scheme: str, named: str) -> None:
    with pytest.raises(UnsuitableFilesystemError, match=rf"^{scheme}://b/w is on .*{named}.*HDFS"):
        check_renames(scheme, f"{scheme}://b/w")


def test_filesystems_that_rename_at_once_are_taken() -> None:
    for scheme in ("file", "hdfs", "viewfs", "ofs"):
        check_renames(scheme, f"{scheme}://b/w")
    check_renames("abfss", "abfss://c@a.dfs.core.windows.net/w", hierarchical=True)
