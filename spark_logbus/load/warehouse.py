"""A topic's directory in a warehouse, and the commit that holds its data and offsets together.

The warehouse is a directory on any Hadoop filesystem::

    <warehouse>/<topic>/date=2013-01-01/part-....parquet     what everyone reads
    <warehouse>/<topic>/_logbus/loads/<number>.json          one per load: offsets and files
    <warehouse>/<topic>/_logbus/staging/<number>-<id>/       files of a load under way

A load reads from where the last committed load ended, writes into staging, counts what is there,
and then writes its ``loads/<number>.json`` by one atomic rename. That file is the commit: it names
the offsets and the data files together. Moving the files into place comes after it and can be
repeated, so a load that is killed before the commit leaves nothing (its staging is discarded by
the next run), and one that is killed after it is finished by the next run. No record is lost, none
is there twice. A lock in ZooKeeper keeps two loads of one topic into one warehouse apart.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql import SparkSession

from spark_logbus.errors import Fault, LogbusError
from spark_logbus.model import OffsetRange, TopicPartition

COMMIT_VERSION = 1
_DIGITS = 20


class WarehouseError(LogbusError):
    """The warehouse directory is not in a state that a load can build on."""

    fault: ClassVar[Fault] = "data"


@dataclass(frozen=True, slots=True)
class Commit:
    """One committed load: which offsets are in, and which files hold them."""

    number: int
    staging: str  # the name of its directory under staging/
    topic_id: str
    ranges: tuple[OffsetRange, ...]
    ends: dict[int, int]  # of all partitions, also those that had nothing new
    records: int
    files: tuple[str, ...]  # relative to the topic's directory

    @staticmethod
    def staging_name(number: int, unique: str) -> str:
        return f"{number:0{_DIGITS}d}-{unique}"

    def to_json(self) -> str:
        return json.dumps(
            {
                "version": COMMIT_VERSION,
                "number": self.number,
                "staging": self.staging,
                "topic_id": self.topic_id,
                "ranges": [
                    {"partition": r.topic_partition.partition, "start": r.start, "end": r.end}
                    for r in self.ranges
                ],
                "ends": {str(partition): end for partition, end in sorted(self.ends.items())},
                "records": self.records,
                "files": list(self.files),
            },
            indent=1,
        )

    @staticmethod
    def from_json(topic: str, text: str) -> Commit:
        data = json.loads(text)
        if data["version"] != COMMIT_VERSION:
            raise WarehouseError(
                f"Load {data['number']} was committed in format {data['version']}, this job knows "
                f"{COMMIT_VERSION}; use the newer release that wrote it."
            )
        return Commit(
            data["number"],
            data["staging"],
            data["topic_id"],
            tuple(
                OffsetRange(TopicPartition(topic, r["partition"]), r["start"], r["end"])
                for r in data["ranges"]
            ),
            {int(partition): end for partition, end in data["ends"].items()},
            data["records"],
            tuple(data["files"]),
        )


class Warehouse:
    """The directory of one topic, through Hadoop's filesystem API. Not thread-safe."""

    def __init__(self, spark: SparkSession, root: str, topic: str) -> None:
        self._jvm: Any = spark._jvm
        self._conf: Any = spark._jsc.hadoopConfiguration()
        self.topic = topic
        self.path = f"{root.rstrip('/')}/{topic}"
        self._loads = f"{self.path}/_logbus/loads"
        self._staging = f"{self.path}/_logbus/staging"
        self._fs: Any = self._hadoop_path(self.path).getFileSystem(self._conf)

    def _hadoop_path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._hadoop_path(path)))

    def staging(self, name: str) -> str:
        return f"{self._staging}/{name}"

    def last_commit(self) -> Commit | None:
        if not self._exists(self._loads):
            return None
        names = [
            status.getPath().getName()
            for status in self._fs.listStatus(self._hadoop_path(self._loads))
        ]
        commits = sorted(n for n in names if n.endswith(".json") and n[:_DIGITS].isdigit())
        return self._read_commit(commits[-1]) if commits else None

    def _read_commit(self, name: str) -> Commit:
        stream = self._fs.open(self._hadoop_path(f"{self._loads}/{name}"))
        try:
            text = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        return Commit.from_json(self.topic, text)

    def recover(self) -> Commit | None:
        """Finish a load that was committed and discard those that were not; the last commit."""
        last = self.last_commit()
        if self._exists(self._staging):
            for status in self._fs.listStatus(self._hadoop_path(self._staging)):
                name = status.getPath().getName()
                if last is not None and name == last.staging:
                    self.publish(last)
                else:
                    self._fs.delete(status.getPath(), True)
        return last

    def data_files(self, staging: str) -> Iterator[str]:
        """The Parquet files that a load has written, relative to its staging directory."""
        root = self._hadoop_path(self.staging(staging))
        if not self._fs.exists(root):
            return
        prefix = self._fs.makeQualified(root).toUri().getPath().rstrip("/") + "/"
        found = self._fs.listFiles(root, True)
        while found.hasNext():
            path = found.next().getPath().toUri().getPath()
            name = path.rsplit("/", 1)[1]
            if not name.startswith(("_", ".")):
                yield path.removeprefix(prefix)

    def commit(self, commit: Commit) -> None:
        """Write the commit file by one rename that fails if another load was faster."""
        final = self._hadoop_path(f"{self._loads}/{commit.number:0{_DIGITS}d}.json")
        fresh = self._hadoop_path(f"{self._loads}/.{commit.number:0{_DIGITS}d}.{time.time_ns()}")
        stream = self._fs.create(fresh, False)
        try:
            stream.write(bytearray(commit.to_json().encode()))
            stream.hsync()
        finally:
            stream.close()
        context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
            self._fs.getUri(), self._conf
        )
        rename = self._jvm.org.apache.hadoop.fs.Options.Rename
        no_overwrite = _java_array(self._jvm, rename, [rename.NONE])
        try:
            context.rename(fresh, final, no_overwrite)
        except Exception as error:
            self._fs.delete(fresh, False)
            raise WarehouseError(
                f"Load {commit.number} of {self.path} could not be committed; was another load "
                f"running at the same time? Nothing was changed; run the load again. ({error})"
            ) from error

    def publish(self, commit: Commit) -> None:
        """Move a committed load's files into place; repeating it is harmless."""
        staging = self.staging(commit.staging)
        for name in commit.files:
            source = self._hadoop_path(f"{staging}/{name}")
            target = self._hadoop_path(f"{self.path}/{name}")
            if self._fs.exists(source):
                self._fs.mkdirs(target.getParent())
                if not self._fs.rename(source, target):
                    raise WarehouseError(f"Cannot move {source} to {target}; run the load again.")
            elif not self._fs.exists(target):
                raise WarehouseError(
                    f"{target} of committed load {commit.number} is missing, and so is its staged "
                    "copy; restore the file before loading on."
                )
        self._fs.delete(self._hadoop_path(staging), True)


def _java_array(jvm: Any, kind: Any, values: list[Any]) -> Any:
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None
    array = gateway.new_array(kind, len(values))
    for position, value in enumerate(values):
        array[position] = value
    return array
