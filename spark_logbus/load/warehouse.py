"""A topic's directory in a warehouse, and the commit that holds its data and offsets together.

The warehouse is a directory on any Hadoop filesystem::

    <warehouse>/<topic>/date=2013-01-01/part-....parquet     what everyone reads
    <warehouse>/<topic>/_logbus/loads/<number>.json          one per load: offsets and files
    <warehouse>/<topic>/_logbus/staging/<number>-<id>/       files of a load under way

A load reads from where the last committed load ended, writes into staging, counts what is there,
and then puts its ``loads/<number>.json`` in place by one rename. That is the commit: it names the
offsets and the data files together. Moving the files to where readers look comes after it and can
be repeated, so a load that is killed before the commit leaves nothing (its staging is discarded
by the next run), and one that is killed after it is finished by the next run. No record is lost,
none is there twice. A lock in ZooKeeper keeps two loads of one topic into one warehouse apart.

Readers skip ``_logbus``, as every name that begins with ``_`` or ``.``.
"""

from __future__ import annotations

from collections import defaultdict

from pyspark.sql import SparkSession

from spark_logbus.load.commits import Commit, newest
from spark_logbus.load.hadoop import HadoopDirectory, WarehouseError

_LOADS = "_logbus/loads"
_STAGING = "_logbus/staging"
# Written beside the staged files, so that whatever discards those discards it too.
_COMMIT = "_commit.json"


class Warehouse:
    """The directory of one topic. Not thread-safe; only for the holder of the topic's lock."""

    def __init__(self, spark: SparkSession, root: str, topic: str) -> None:
        self._directory = HadoopDirectory(spark, f"{root.rstrip('/')}/{topic}")
        self.topic = topic

    @property
    def path(self) -> str:
        """Absolute and with its scheme: the same for every way to name the directory."""
        return self._directory.root

    def staging(self, name: str) -> str:
        """Where a load writes: the absolute path of its staging directory."""
        return self._directory.absolute(f"{_STAGING}/{name}")

    def last_commit(self) -> Commit | None:
        name = newest(self._directory.names(_LOADS))
        if name is None:
            return None
        return Commit.from_json(self.topic, self._directory.read(f"{_LOADS}/{name}"))

    def recover(self) -> Commit | None:
        """Finish a load that was committed and discard those that were not; the last commit."""
        last = self.last_commit()
        for name in self._directory.names(_STAGING):
            if last is not None and name == last.staging:
                self.publish(last)
            else:
                self._directory.delete(f"{_STAGING}/{name}")
        return last

    def commit(self, commit: Commit) -> None:
        """Put the commit file in place, by one rename that fails if another load was faster."""
        staging = f"{_STAGING}/{commit.staging}"
        directories = {name.rpartition("/")[0] for name in commit.files}
        self._directory.flush(f"{staging}/{name}" for name in (*commit.files, *directories, ""))
        self._directory.write(f"{staging}/{_COMMIT}", commit.to_json())
        self._directory.make_directory(_LOADS)
        self._directory.claim(f"{staging}/{_COMMIT}", f"{_LOADS}/{commit.file_name}")

    def publish(self, commit: Commit) -> None:
        """Move a committed load's files to where readers look; repeating it is harmless.

        A date that is new to the warehouse is moved as a whole, by one rename.
        """
        staging = f"{_STAGING}/{commit.staging}"
        by_date: dict[str, set[str]] = defaultdict(set)
        for name in commit.files:
            date, _, file = name.rpartition("/")
            by_date[date].add(file)
        staged, present = set(self._directory.names(staging)), set(self._directory.names())
        for date, files in sorted(by_date.items()):
            if date in staged and date not in present:
                self._directory.rename(f"{staging}/{date}", date)
                continue
            here = files & set(self._directory.names(f"{staging}/{date}"))
            self._require(commit, date, files - here)
            for file in sorted(here):
                self._directory.rename(f"{staging}/{date}/{file}", f"{date}/{file}")
        self._directory.delete(staging)

    def _require(self, commit: Commit, date: str, moved: set[str]) -> None:
        """Files that are no longer staged must have been moved by an earlier try."""
        missing = sorted(moved - set(self._directory.names(date))) if moved else []
        if missing:
            raise WarehouseError(
                f"{self._directory.absolute(date)}/{missing[0]} of committed load "
                f"{commit.number} is missing, and so is its staged copy; restore the file before "
                "loading on."
            )
