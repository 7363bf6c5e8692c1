"""A directory on any Hadoop filesystem, through the JVM that Spark runs in.

Asking the JVM for a class takes several calls, so classes that are used for every file are looked
up once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from spark_logbus.load.errors import WarehouseError, translated


class UnsuitableFilesystemError(WarehouseError):
    """A rename is no single step there, so that no load could commit by one."""


#: Stores of objects, by the scheme of their paths, whose connectors copy and delete each file to
#: rename it, or a directory file by file.
_COPYING = {
    "s3": "Amazon S3",
    "s3a": "Amazon S3",
    "s3n": "Amazon S3",
    "gs": "Google Cloud Storage",
    "wasb": "Azure Blob Storage",
    "wasbs": "Azure Blob Storage",
    "oss": "Alibaba OSS",
    "cosn": "Tencent COS",
    "obs": "Huawei OBS",
    "swift": "OpenStack Swift",
}
_AZURE = ("abfs", "abfss")  # renames in one step with a hierarchical namespace alone


def check_renames(scheme: str, path: str, *, hierarchical: bool = False) -> None:
    """Raises UnsuitableFilesystemError for a store that renames by copies (pure); ``hierarchical``
    says that Azure's storage account has a hierarchical namespace."""
    store = _COPYING.get(scheme.lower())
    if scheme.lower() in _AZURE and not hierarchical:
        store = "an Azure storage account without hierarchical namespace"
    if store is not None:
        raise UnsuitableFilesystemError(
            f"{path} is on {store}, where a rename copies files one by one, and a load commits by "
            "a rename that happens at once or not at all. Load into HDFS, a local directory, or "
            "Azure storage with a hierarchical namespace, and copy what is there."
        )


def local_path(url: str) -> Path | None:
    """Returns the path of a file or directory that Hadoop says is on this machine's own
    filesystem; None for others."""
    return Path(url.removeprefix("file:")) if urlsplit(url).scheme == "file" else None


class HadoopDirectory:
    """One directory; paths are given relative to it, with ``/``. Not thread-safe.

    All methods raise WarehouseError.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._conf: Any = spark._jsc.hadoopConfiguration()
        self._path_class: Any = jvm.org.apache.hadoop.fs.Path
        with translated(f"use the directory {path}"):
            given = self._path_class(path)
            scheme = str(
                given.toUri().getScheme()
                or jvm.org.apache.hadoop.fs.FileSystem.getDefaultUri(self._conf).getScheme()
            )
            # Before its classes are asked for, which need not be there.
            check_renames(scheme, path, hierarchical=True)
            self._fs: Any = given.getFileSystem(self._conf)
            if scheme.lower() in _AZURE:
                # Its connector has access control lists with such a namespace only.
                capable = self._fs.hasPathCapability(given, "fs.capability.paths.acls")
                check_renames(scheme, path, hierarchical=bool(capable))
            #: The same for every way to write it: absolute, with its scheme.
            self.root = str(self._fs.makeQualified(given).toString())

    @property
    def local(self) -> Path | None:
        """The directory itself where this machine's own filesystem holds it."""
        return local_path(self.root)

    def absolute(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    def _path(self, name: str) -> Any:
        return self._path_class(self.absolute(name))

    def exists(self, name: str) -> bool:
        with translated(f"look for {self.absolute(name)}"):
            return bool(self._fs.exists(self._path(name)))

    def names(self, name: str = "") -> list[str]:
        """The names in a directory, sorted; none if it is not there."""
        with translated(f"list {self.absolute(name)}"):
            path = self._path(name)
            if not self._fs.exists(path):
                return []
            return sorted(str(one.getPath().getName()) for one in self._fs.listStatus(path))

    def size_bytes(self, name: str) -> int:
        """Sums up the sizes of all files in a directory and those below it."""
        with translated(f"look at {self.absolute(name)}"):
            return int(self._fs.getContentSummary(self._path(name)).getLength())

    def read(self, name: str) -> str:
        with translated(f"read {self.absolute(name)}"):
            stream = self._fs.open(self._path(name))
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()

    def write(self, name: str, text: str) -> None:
        """Writes a new file, which is on disk then as far as the filesystem can promise that."""
        with translated(f"write {self.absolute(name)}"):
            stream = self._fs.create(self._path(name), False)
            try:
                stream.write(bytearray(text.encode()))
                stream.hsync()
            finally:
                stream.close()
        self.flush([name])

    def make_directory(self, name: str) -> None:
        with translated(f"make the directory {self.absolute(name)}"):
            self._fs.mkdirs(self._path(name))

    def rename(self, source: str, target: str) -> None:
        """Moves a file or a directory to a name that nothing has yet."""
        with translated(f"move {self.absolute(source)} to {self.absolute(target)}"):
            if not self._fs.rename(self._path(source), self._path(target)):
                raise WarehouseError(
                    f"Cannot move {self.absolute(source)} to {self.absolute(target)}; the "
                    "filesystem does not say why. Is another load at work? Run the load again."
                )

    def claim(self, source: str, target: str) -> None:
        """Moves a file, and fails when ``target`` exists: decided by the filesystem in one step on
        HDFS, looked up first on a local one."""
        with translated(f"move {self.absolute(source)} to {self.absolute(target)}"):
            context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
                self._fs.getUri(), self._conf
            )
            kind = self._jvm.org.apache.hadoop.fs.Options.Rename
            from pyspark import SparkContext

            gateway = SparkContext._gateway
            assert gateway is not None
            options = gateway.new_array(kind, 1)
            options[0] = kind.NONE
            context.rename(self._path(source), self._path(target), options)
        self.flush([os.path.dirname(target)])

    def delete(self, name: str) -> None:
        """Deletes a file, or a directory with all that is in it, if it is there."""
        with translated(f"delete {self.absolute(name)}"):
            self._fs.delete(self._path(name), True)

    def flush(self, names: Iterable[str]) -> None:
        """Brings files and directories to disk, where that is up to us.

        HDFS and object stores have what they acknowledged. Hadoop's local filesystem leaves it to
        the operating system, and a power cut could keep the commit and lose what it names.
        """
        local = self.local
        if local is None:
            return
        with translated(f"flush files in {self.root} to disk"):
            for name in names:
                descriptor = os.open(local / name, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
