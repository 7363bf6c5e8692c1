"""Checks one log: its segments from the first byte to the last, their indexes, its small files."""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_logbus.log import names
from spark_logbus.log.checkpoint import LogCheckpoint
from spark_logbus.log.filesystem import FileSystem
from spark_logbus.log.inspect.index_check import IndexComparison
from spark_logbus.log.inspect.listing import LogListing, list_log, problem_at, read_text_file
from spark_logbus.log.segment.index_file import read_index
from spark_logbus.log.segment.scan import OnProgress, scan
from spark_logbus.record import RecordBatchHeader

GONE: Final = "It was deleted while it was looked at."
LEFTOVER: Final = "A leftover; the broker removes it at its next start."


class Severity(enum.Enum):
    DAMAGE = "damage"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    path: Path
    message: str


def text_problem(files: FileSystem, path: Path) -> str | None:
    try:
        return read_text_file(files, path).problem
    except FileNotFoundError:
        return None  # replaced or taken away at this moment
    except OSError as error:
        return f"it cannot be read ({error.strerror})"


class LogCheck:
    """Checks one log; used once, by one thread."""

    def __init__(
        self,
        files: FileSystem,
        log: LogListing,
        checkpoint: LogCheckpoint | None,
        *,
        live: bool,
        clean: bool,
    ) -> None:
        self.findings: list[Finding] = []
        self._files = files
        self._log = log
        self._live = live
        self._clean = clean
        self._checkpoint = checkpoint
        self.segments = 0
        self.record_batches = 0
        self.records = 0
        self.size_bytes = 0
        # What a crash may lose or tear: nothing is wrong with it unless there was none.
        self._torn = Severity.DAMAGE if clean else Severity.NOTE

    @property
    def sound(self) -> bool:
        return not any(finding.severity is Severity.DAMAGE for finding in self.findings)

    def run(self, on_progress: OnProgress) -> None:
        self._check_names()
        self._check_start()
        segments = self._segments()
        for (base, path), following in itertools.zip_longest(segments, segments[1:]):
            end = following[0] if following is not None else None
            try:
                self._check_segment(path, base, end, on_progress)
            except FileNotFoundError:
                if not self._retention_was_faster(base):
                    self._find(Severity.DAMAGE, path, GONE)
            except OSError as error:
                self._find(Severity.DAMAGE, path, f"It cannot be read: {error.strerror}.")

    def _retention_was_faster(self, base: int) -> bool:
        """Whether a broker at work has deleted all up to the segment at ``base``: such a log is
        whole, and one that is looked at again would have moved again."""
        if not self._live:
            return False
        try:
            left = list_log(self._files, self._log.path, self._log.topic_partition).base_offsets
        except FileNotFoundError:
            return False  # the whole log went
        return bool(left) and left[0] > base

    def _segments(self) -> list[tuple[int, Path]]:
        """Base offsets and files, in order: a compacted segment stands for those it replaces."""
        segments = {base: self._log.segment(base) for base in self._log.base_offsets}
        for name in self._log.others:
            found = names.parse_swap(name)
            if found is not None:
                start, end = found
                for base in [base for base in segments if start <= base < end]:
                    del segments[base]
                segments[start] = self._log.path / name
        return sorted(segments.items())

    def _find(self, severity: Severity, path: Path, message: str) -> None:
        self.findings.append(Finding(severity, path, message))

    # -- names and small files --------------------------------------------------------------

    def _check_names(self) -> None:
        for name in self._log.others:
            path = self._log.path / name
            if name == names.PARTITION_METADATA:
                self._check_metadata(path)
            elif names.parse_producers(name) is not None:
                # Also after an orderly stop: it is not synced then, and a full disk may refuse it.
                self._check_text(path, Severity.NOTE, "It is rebuilt from the log")
            elif name == names.COMPACTION:
                self._check_text(path, Severity.DAMAGE, "Compaction starts over without it")
            elif name == names.TOPIC_CONFIG:
                message = "The broker's defaults count until ZooKeeper has told"
                self._check_text(path, Severity.DAMAGE, message)
            elif names.parse_swap(name) is not None:
                message = "A compacted segment; the next start puts it in its place."
                self._note_at_rest(path, message)
            elif names.is_leftover(name):
                self._note_at_rest(path, LEFTOVER)
            else:
                self._check_other(path, names.parse_index(name))
        if names.PARTITION_METADATA not in self._log.others:
            path = self._log.path / names.PARTITION_METADATA
            self._find(Severity.DAMAGE, path, "It is missing; the next start tries to restore it.")

    def _check_other(self, path: Path, index_of: int | None) -> None:
        if index_of is None:
            self._find(Severity.NOTE, path, "Not a file that this release knows.")
        elif index_of not in self._log.base_offsets:
            self._note_at_rest(path, LEFTOVER)

    def _note_at_rest(self, path: Path, message: str) -> None:
        """While a broker is at work, such a file is being written or on its way out."""
        if not self._live:
            self._find(Severity.NOTE, path, message)

    def _check_text(self, path: Path, severity: Severity, consequence: str) -> None:
        problem = text_problem(self._files, path)
        if problem is not None:
            self._find(severity, path, f"{consequence}: {problem}.")

    def _check_metadata(self, path: Path) -> None:
        try:
            text = read_text_file(self._files, path)
        except OSError as error:
            self._find(Severity.DAMAGE, path, f"It cannot be read: {error.strerror}.")
            return
        where = self._log.topic_partition
        if text.problem is not None:
            self._find(Severity.DAMAGE, path, f"It counts as missing: {text.problem}.")
        elif text.lines[:2] != (where.topic, str(where.partition)):
            found = "-".join(text.lines[:2])
            message = f"It belongs to the log of {found}: was the directory renamed?"
            self._find(Severity.DAMAGE, path, message)
        elif self._checkpoint is not None and self._checkpoint.topic_id != text.lines[2]:
            self._checkpoint = None  # of an earlier topic of that name

    def _check_start(self) -> None:
        known, base_offsets = self._checkpoint, self._log.base_offsets
        if not base_offsets:
            if known is not None:
                self._find(Severity.DAMAGE, self._log.path, "It holds no segment.")
            return
        if known is None:
            return
        start = known.log_start_offset
        if base_offsets[0] > start:
            message = (
                f"The log starts at offset {start}, but this is the first segment: offsets "
                f"{start} up to {base_offsets[0]} are gone. (Retention on a full disk leaves this "
                "too.)"
            )
            self._find(Severity.DAMAGE, self._log.segment(base_offsets[0]), message)
        elif len(base_offsets) > 1 and base_offsets[1] <= start:
            message = f"It lies before the log's start, offset {start}, and is about to be deleted."
            self._find(Severity.NOTE, self._log.segment(base_offsets[0]), message)

    # -- segments ---------------------------------------------------------------------------

    def _check_segment(
        self, path: Path, base: int, following: int | None, on_progress: OnProgress
    ) -> None:
        file = self._files.open_read_only(path)
        limit = file.size()
        index_file = read_index(self._files, path.with_suffix(".index"))
        comparison = IndexComparison(index_file, base_offset=base)
        found = len(self.findings)

        def see(header: RecordBatchHeader, position: int) -> None:
            self.record_batches += 1
            self.records += header.record_count
            comparison.see(header, position)
            on_progress(header.size)

        result = scan(file, base_offset=base, limit=limit, on_record_batch=see)
        self.segments += 1
        self.size_bytes += limit
        for hole in result.holes:
            why = problem_at(file, hole.start_position, limit=limit, expected_offset=hole.start)
            self._find(
                Severity.DAMAGE, path,
                f"Offsets {hole.start} up to {hole.end} (bytes {hole.start_position} to "
                f"{hole.end_position}) are damaged. {why}",
            )  # fmt: skip
        end, rest = result.end_offset, limit - result.end_position
        why = ""
        if rest:
            why = problem_at(file, result.end_position, limit=limit, expected_offset=end)
        if following is None:
            self._check_log_end(path, end, rest, why)
        else:
            self._check_segment_end(path, end, following, rest, why)
        if len(self.findings) == found:  # an index is compared with sound segments only
            self._check_index(path, comparison, limit, last=following is None)

    def _check_segment_end(self, path: Path, end: int, following: int, rest: int, why: str) -> None:
        if end > following:
            message = (
                f"It ends at offset {end}, but the next segment begins at {following}: the "
                "offsets between are there twice."
            )
        elif rest:
            message = f"Its last {rest} bytes are no record batches. {why}"
            if end < following:
                message = f"Offsets {end} up to {following} are damaged. {message}"
        elif end < following:
            message = (
                f"It ends at offset {end}, but the next segment begins at {following}: a "
                "segment between them is missing, or this one was cut."
            )
        else:
            return
        self._find(Severity.DAMAGE, path, message)

    def _check_log_end(self, path: Path, end: int, rest: int, why: str) -> None:
        flushed = self._checkpoint.recovery_point if self._checkpoint is not None else 0
        if end < flushed:
            self._find(
                Severity.DAMAGE, path,
                f"Offsets {end} up to {flushed} were on disk and are gone. {why}".rstrip(),
            )  # fmt: skip
        elif rest and not self._live:
            tail = f"Its last {rest} bytes are no whole record batches. {why}"
            if not self._clean:
                tail = f"{tail} A crash leaves this: the next start cuts them off."
            self._find(self._torn, path, tail)

    def _check_index(
        self, path: Path, comparison: IndexComparison, size_bytes: int, *, last: bool
    ) -> None:
        """The active segment's index is in memory; on disk only after an orderly stop."""
        if last and (not self._clean or size_bytes == 0):
            return
        index_path = path.with_suffix(".index")
        unusable = comparison.unusable(size_bytes=size_bytes)
        if unusable is not None:
            message = f"The broker rebuilds it when it opens the segment: {unusable}."
            self._find(self._torn, index_path, message)
        elif (wrong := comparison.wrong()) is not None:
            message = f"It misleads readers: {wrong}. Stop the broker and delete it."
            self._find(Severity.DAMAGE, index_path, message)
