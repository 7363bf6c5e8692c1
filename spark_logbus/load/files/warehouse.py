"""A topic's directory in a warehouse, and the commit that holds its data and offsets together.

The warehouse is a directory on any Hadoop filesystem::

    <warehouse>/<topic>/date=2013-01-01/part-....parquet     what everyone reads (see layout)
    <warehouse>/<topic>/_logbus/loads/<number>.json          one per load: offsets and files
    <warehouse>/<topic>/_logbus/staging/<number>-<id>/       files of a load under way
    <warehouse>/<topic>/_logbus/fenced/<number>-<id>/        of one that the next load took over
    <warehouse>/<topic>/_loaded-<number>-<id>                the last one whose files are in

A load reads from where the last committed load ended, writes into staging, checks what is there,
and then puts its ``loads/<number>.json`` in place by one rename. That is the commit: it names the
offsets and the data files together. Moving the files to where readers look comes after it and can
be repeated, so a load that is killed before the commit leaves nothing (its staging is discarded
by the next run), and one that is killed after it is finished by the next run. No record is lost,
none is there twice.

A lock in ZooKeeper keeps two loads of one topic into one warehouse apart. A load that stands still
for longer than its session cannot know that it lost the lock, so the next one fences it first: it
moves away what is in staging, and only then looks which load committed last. The commit's rename
begins in staging and is all that is done after the lock was checked. So it comes before the fence
and is seen, or after it and finds nothing to rename.

Commit files that are lost, or an older copy of them, would have the next load read records again
that are in already. So the name of the last load whose files are in stands beside those as well,
and a load that finds an older commit than that is refused.

Readers skip ``_logbus``, as every name that begins with ``_`` or ``.``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import cast

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_logbus.audit.warehouse import Loads
from spark_logbus.load.commit import DEAD_LETTERS, Commit, newest
from spark_logbus.load.errors import SupersededError, WarehouseError, translated
from spark_logbus.load.files.hadoop import HadoopDirectory
from spark_logbus.load.layout import DEFAULT_LAYOUT
from spark_logbus.load.tally import TALLIED

_LOADS = "_logbus/loads"
_STAGING = "_logbus/staging"
_FENCED = "_logbus/fenced"
# Written beside the staged files, so that whatever discards those discards it too.
_COMMIT = "_commit.json"
_LOADED = "_loaded-"
_IS_LOADED = re.compile(rf"{_LOADED}\d+-.+")
_DATE = "date="
ROWS = "partition int, offset bigint, timestamp timestamp"
"""DDL of the columns that say which record each row is, and when that was."""


class Warehouse:
    """The directory of one topic. Not thread-safe; only for the holder of the topic's lock."""

    def __init__(self, spark: SparkSession, root: str, topic: str) -> None:
        self._spark = spark
        self._directory = HadoopDirectory(spark, f"{root.rstrip('/')}/{topic}")
        self.topic = topic

    @property
    def path(self) -> str:
        """Path with its scheme, the same for every way to name the directory."""
        return self._directory.root

    def staging(self, name: str) -> str:
        """The absolute path of a load's staging directory, which it writes to."""
        return self._directory.absolute(f"{_STAGING}/{name}")

    def commit_texts(self) -> list[str]:
        """The commit files of all loads, in their order."""
        names = sorted(filter(_is_commit, self._directory.names(_LOADS)))
        return [self._directory.read(f"{_LOADS}/{name}") for name in names]

    def last_commit(self) -> Commit | None:
        name = newest(self._directory.names(_LOADS))
        return None if name is None else self._commit(name)

    def newest_commit(self) -> Commit | None:
        """Returns the last commit, for readers that hold no lock. Raises WarehouseError where the
        files of a later one are in, whose commit file is gone."""
        names = self._directory.names()  # first: a mark comes after its commit
        last = self.last_commit()
        require_newest(names, last, path=self.path)
        return last

    def _commit(self, file_name: str) -> Commit:
        return Commit.from_json(self.topic, self._directory.read(f"{_LOADS}/{file_name}"))

    def commits_after(self, last: Commit) -> list[Commit]:
        """Reads the commits of all loads after ``last``."""
        names = filter(_is_commit, self._directory.names(_LOADS))
        return [self._commit(name) for name in sorted(names) if name > last.file_name]

    def is_published(self, commit: Commit) -> bool:
        """Tells whether the files of a committed load are where readers look, and those that it
        replaces are gone; its staging directory goes last. For readers, too, that hold no lock."""
        # In this order: a load that takes over moves it from the first place to the second.
        places = (_STAGING, _FENCED)
        return not any(self._directory.exists(f"{each}/{commit.staging}") for each in places)

    def directories_since(self, staging: str | None) -> list[str]:
        """Lists, sorted, the directories that loads after the one with that staging directory have
        brought files for; those of all loads where none has it."""
        found: set[str] = set()
        for name in sorted(filter(_is_commit, self._directory.names(_LOADS)), reverse=True):
            commit = self._commit(name)
            if commit.staging == staging:
                break
            found.update(file.rpartition("/")[0] for file in commit.files)
        return sorted(found - {"", DEAD_LETTERS})

    def loads(self) -> Loads:
        """Offsets that the commit files of all loads tell."""
        return Loads.from_commits(self.commit_texts())

    def rows(self, staged: Commit | None = None, *, columns: str = ROWS) -> DataFrame:
        """Reads ``columns`` (DDL, none that names a directory) of all committed records, dead
        letters included, or of those of a load that is ``staged``."""
        root = self.path if staged is None else self.staging(staged.staging)
        commit = self.last_commit() if staged is None else staged
        layout = DEFAULT_LAYOUT if commit is None else commit.layout
        reader = self._spark.read.format(layout.format.value).schema(columns)
        # Directories add columns of their own.
        names = cast(StructType, StructType.fromDDL(columns)).names
        frame = reader.load(root).select(names)
        if self.has_dead_letters(root):
            frame = frame.union(reader.load(f"{root}/{DEAD_LETTERS}").select(names))
        return frame

    def records_of(self, last: Commit, files: tuple[str, ...]) -> DataFrame:
        """Reads the records of ``files``, with the names of their directories as texts: read as
        numbers or dates, some would be written in another way. What a tally is made of is numbers
        always."""
        directories = last.layout.partition_columns
        kept = self.schema(last) or StructType()
        schema = StructType([each for each in kept.fields if each.name not in directories])
        for name in directories:
            schema = schema.add(name, kept[name].dataType if name in TALLIED else "string")
        reader = self._spark.read.format(last.layout.format.value).schema(schema)
        return reader.option("basePath", self.path).load(self._paths(files))

    def letters_of(self, last: Commit, files: tuple[str, ...]) -> DataFrame:
        """Reads the dead letters of ``files``."""
        reader = self._spark.read.format(last.layout.format.value).option("mergeSchema", "true")
        return reader.load(self._paths(files))

    def _paths(self, files: Iterable[str]) -> list[str]:
        return [self._directory.absolute(name) for name in files]

    def has_dead_letters(self, root: str | None = None) -> bool:
        """Tells whether there are some; ``root`` is the absolute path of a load's staging."""
        below = "" if root is None else root.removeprefix(self.path).lstrip("/")
        return self._directory.exists(_under(below, DEAD_LETTERS))

    def schema(self, last: Commit | None) -> StructType | None:
        """Schema of all columns that loads up to ``last`` have written; None before there are any.

        Earlier releases did not keep it with the commit. It is looked up in the files then: in
        all of them, or in the last load's where they no longer go together.
        """
        if last is None or last.schema is not None:
            return None if last is None else last.schema
        if not any(name.startswith(_DATE) for name in self._directory.names()):
            return None
        for paths in ([self.path], self._paths(last.files)):
            try:
                read = self._spark.read.option("mergeSchema", "true").parquet(*paths)
                return without_date(read.schema)
            except PySparkException:
                continue
        return None

    def recover(self) -> Commit | None:
        """Takes over from all loads before: none of them can commit any more when this returns.

        Finishes a load that was committed, discards those that were not, and returns the last
        commit. Raises WarehouseError when that is older than the files that are in.
        """
        self._fence()
        # In this order: what is listed was fenced before, so that the last commit is known of it.
        fenced = self._directory.names(_FENCED)
        last = self.last_commit()
        require_newest(self._directory.names(), last, path=self.path)
        for name in fenced:
            if last is not None and name == last.staging:
                self._publish(last, f"{_FENCED}/{name}")
            else:
                self._directory.delete(f"{_FENCED}/{name}")
        return last

    def _mark_loaded(self, commit: Commit) -> None:
        before, name = _marks(self._directory.names()), _loaded_name(commit)
        if name not in before:
            self._directory.write(name, "")
        for each in before:
            if each < name:
                self._directory.delete(each)

    def _fence(self) -> None:
        staged, fenced = self._directory.names(_STAGING), self._directory.names(_FENCED)
        if staged:
            self._directory.make_directory(_FENCED)
        for name in staged:
            if name in fenced:
                # Tasks of a load that was fenced before have made its directory anew.
                self._directory.delete(f"{_STAGING}/{name}")
            else:
                self._directory.rename(f"{_STAGING}/{name}", f"{_FENCED}/{name}")

    def prepare(self, commit: Commit) -> None:
        """Does all of a commit but its one rename: brings staged files to disk, and the commit file
        beside them. Check the lock after this, and then ``commit``."""
        staging = f"{_STAGING}/{commit.staging}"
        directories = {parent for name in commit.files for parent in _parents(name)}
        self._directory.flush(
            f"{staging}/{name}" for name in (*commit.files, *sorted(directories), "")
        )
        self._directory.write(f"{staging}/{_COMMIT}", commit.to_json())
        self._directory.make_directory(_LOADS)

    def commit(self, commit: Commit) -> None:
        """Puts the commit file in place, by one rename that fails if another load was faster.

        SupersededError when one has taken over; nothing is left of this load then.
        """
        staging = f"{_STAGING}/{commit.staging}"
        try:
            self._directory.claim(f"{staging}/{_COMMIT}", f"{_LOADS}/{commit.file_name}")
        except WarehouseError as error:
            committed = commit.file_name in self._directory.names(_LOADS)
            there = self._commit(commit.file_name) if committed else None
            if there is not None and there.staging == commit.staging:
                return  # only the answer was lost
            if there is None and self._directory.exists(staging):
                raise
            self._directory.delete(staging)
            raise SupersededError(
                f"Load {commit.number} stood still for longer than its ZooKeeper session lasts, "
                "and another load has taken over meanwhile. Nothing of it was committed, and what "
                "it had staged is discarded. Run it again for what is new by then."
            ) from error

    def publish(self, commit: Commit) -> None:
        """Moves a committed load's files to where readers look.

        SupersededError when another load has taken over, which moves them itself.
        """
        staging = f"{_STAGING}/{commit.staging}"
        try:
            self._publish(commit, staging)
        except WarehouseError as error:
            if self._directory.exists(staging):
                raise
            raise SupersededError(
                f"Load {commit.number} is committed. It stood still for longer than its ZooKeeper "
                "session lasts, and another load has taken over meanwhile: that one, or the next, "
                "moves its files to where readers look."
            ) from error

    def _publish(self, commit: Commit, staging: str) -> None:
        """Moves files; repeating it is harmless. A directory that is new to the warehouse is moved
        as a whole, by one rename. What is replaced goes first: readers may miss records for a
        moment, as while a load comes in, and never see one twice."""
        self._mark_loaded(commit)
        for name in commit.replaces:
            self._directory.delete(name)
        by_directory: dict[str, set[str]] = defaultdict(set)
        for name in commit.files:
            directory, _, file = name.rpartition("/")
            by_directory[directory].add(file)
        moved: set[str] = set()
        for directory, files in sorted(by_directory.items()):
            if not self._move_whole(directory, staging, moved):
                here = files & set(self._directory.names(_under(staging, directory)))
                self._require(commit, directory, files - here)
                for file in sorted(here):
                    name = _under(directory, file)
                    self._directory.rename(f"{staging}/{name}", name)
        self._directory.delete(staging)

    def _move_whole(self, directory: str, staging: str, moved: set[str]) -> bool:
        """Moves ``directory``, or the one above it that is new to the warehouse: False if there is
        none, or none of it is staged any more. Those in ``moved`` have gone with an earlier one."""
        for each in _chain(directory):
            if each in moved:
                return True
            if not self._directory.exists(each):
                if not self._directory.exists(f"{staging}/{each}"):
                    return False
                self._directory.rename(f"{staging}/{each}", each)
                moved.add(each)
                return True
        return False

    def _require(self, commit: Commit, directory: str, moved: set[str]) -> None:
        """Raises WarehouseError unless an earlier try has moved what is no longer staged."""
        missing = sorted(moved - set(self._directory.names(directory))) if moved else []
        if missing:
            raise WarehouseError(
                f"{self._directory.absolute(_under(directory, missing[0]))} of committed load "
                f"{commit.number} is missing, and so is its staged copy; restore the file before "
                "loading on."
            )

    def file_sizes(self) -> dict[str, int]:
        """Sizes of all files that readers see, by name from the topic's directory on."""
        with translated(f"list the files of {self.path}"):
            # Lists many directories in parallel, and reads no file for these two columns.
            found = (
                self._spark.read.format("binaryFile")
                .option("recursiveFileLookup", "true")
                .option("pathGlobFilter", "part-*")
                .load(self.path)
                .select("path", "length")
                .collect()
            )
        return {row["path"].removeprefix(f"{self.path}/"): row["length"] for row in found}

    def size_bytes(self, staging: str) -> int:
        """Size of the files of a load that is staged."""
        return self._directory.size_bytes(f"{_STAGING}/{staging}")


def require_newest(names: Sequence[str], last: Commit | None, *, path: str) -> None:
    """Raises WarehouseError if a topic's directory at ``path``, with these names in it, has files
    of a load after ``last``, or of another one of its number (pure)."""
    marks = _marks(names)
    if not marks:
        return
    number = int(marks[-1].removeprefix(_LOADED).partition("-")[0])
    if last is not None and (number < last.number or marks[-1] == _loaded_name(last)):
        return
    known = "no load" if last is None else f"load {last.number} ({last.staging})"
    raise WarehouseError(
        f"The files of load {number} are in {path}, and {_LOADS} knows {known} as the last one: "
        "commit files were removed, or are of an older copy. A load that went on from there would "
        "bring records a second time. Put the commit files back, of the same time as the data; or, "
        f"if the data are older than they were too, delete {path}/{marks[-1]}, and load on."
    )


def _marks(names: Sequence[str]) -> list[str]:
    """The marks of loads whose files are in, in their order; usually one."""
    return sorted(name for name in names if _IS_LOADED.fullmatch(name))


def _loaded_name(commit: Commit) -> str:
    """Name that sorts as the loads do."""
    return f"{_LOADED}{commit.staging}"


def _is_commit(name: str) -> bool:
    return newest([name]) is not None


def _chain(directory: str) -> list[str]:
    """A directory and those above it, from the top down; none for the root itself."""
    parts = directory.split("/") if directory else []
    return ["/".join(parts[: depth + 1]) for depth in range(len(parts))]


def _parents(name: str) -> list[str]:
    return _chain(name.rpartition("/")[0])


def _under(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory and name else directory or name


def without_date(schema: StructType) -> StructType:
    """The columns that stand in the files; the date stands in their directory's name."""
    return StructType([field for field in schema.fields if field.name != "date"])
