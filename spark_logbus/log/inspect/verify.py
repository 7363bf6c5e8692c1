"""Verifies a data directory: every checksum, offset, index and small file in it.

Traces that a crash leaves (a torn tail, an index that was never synced) are notes; the doing of a
failing disk or a foreign hand is damage. How the broker stopped decides between the two: after an
orderly stop nothing may be torn. While a broker uses the directory, the end of the last segment
may be half written, and files come and go: damage that is found then is looked at a second time.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from spark_logbus.log.checkpoint import CHECKPOINT_TITLE, LogCheckpoint, parse_checkpoint
from spark_logbus.log.disk import names
from spark_logbus.log.disk.filesystem import FileSystem
from spark_logbus.log.inspect.listing import (
    DirectoryListing,
    LogListing,
    in_use,
    list_log,
    read_text_file,
)
from spark_logbus.log.inspect.segment_report import Damage, SegmentReport, inspect_segment
from spark_logbus.log.inspect.staged_report import inspect_staged, is_staged
from spark_logbus.log.segment.index_file import index_path
from spark_logbus.log.segment.scan import OnProgress, ignore_progress
from spark_logbus.model import TopicPartition

_GONE: Final = "It was deleted while it was looked at."
_LEFTOVER: Final = "A leftover; the broker removes it at its next start."
# What becomes of a log with a damaged small file, by its name.
_WITHOUT_IT: Final = {
    names.COMPACTION: "Compaction starts over without it",
    names.PURGED_TOMBSTONES: "Replicas that come back may copy more than they have to",
    names.TOPIC_CONFIG: "The broker's defaults count until ZooKeeper has told",
    names.LOST_OFFSETS: "What was given up counts as damaged",
    names.LEADER_EPOCHS: "It is made again from the headers of the log",
}


class Severity(enum.Enum):
    DAMAGE = "damage"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class DirectoryFinding:
    severity: Severity
    path: Path
    message: str


@dataclass
class Verification:
    """All findings, and how much was read. ``live``: a broker was using the directory."""

    live: bool
    clean: bool
    logs: int = 0
    segments: int = 0
    record_batches: int = 0
    records: int = 0
    size_bytes: int = 0
    findings: list[DirectoryFinding] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return _sound(self.findings)

    def add_log(self, check: LogCheck) -> None:
        self.logs += 1
        self.segments += len(check.reports)
        for report in check.reports:
            self.record_batches += report.record_batches
            self.records += report.records
            self.size_bytes += report.size_bytes
        self.findings += check.findings


def _sound(findings: list[DirectoryFinding]) -> bool:
    return not any(finding.severity is Severity.DAMAGE for finding in findings)


def planned_bytes(listing: DirectoryListing) -> int:
    """Bytes that a verification will read, as of now."""
    sizes = (_size(log.segment(base)) for log in listing.logs for base in log.base_offsets)
    return sum(sizes)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def verify_directory(
    files: FileSystem,
    listing: DirectoryListing,
    *,
    known_files: Collection[str],
    on_progress: OnProgress,
) -> Verification:
    """Check everything in ``listing``; ``known_files`` are names that others keep there.

    Reads as much as there is, and changes nothing.
    """
    path = listing.path
    live = in_use(path)
    clean = not live and _text_is_sound(files, path / names.CLEAN_SHUTDOWN)
    result = Verification(live, clean)
    _check_others(files, listing, known_files, result)
    for log in listing.logs:
        looks = 2 if live else 1
        for look in range(looks):
            # Read anew for each look: retention moves it before it deletes.
            checkpoints = _checkpoints(files, path)
            check = LogCheck(
                files, log, checkpoints.get(log.topic_partition), live=live, clean=clean
            )
            check.run(on_progress if look == 0 else ignore_progress)
            if check.sound or look == looks - 1:
                break
            try:
                log = list_log(files, log.path, log.topic_partition)
            except FileNotFoundError:
                check.findings = [DirectoryFinding(Severity.NOTE, log.path, _GONE)]
                break
        result.add_log(check)
    return result


def _checkpoints(files: FileSystem, path: Path) -> dict[TopicPartition, LogCheckpoint]:
    try:
        text = read_text_file(files, path / names.CHECKPOINT)
    except OSError:
        return {}
    if text.problem is not None or text.title != CHECKPOINT_TITLE:
        return {}
    return parse_checkpoint(text.lines)


def _text_is_sound(files: FileSystem, path: Path) -> bool:
    try:
        return read_text_file(files, path).problem is None
    except OSError:
        return False


def _text_problem(files: FileSystem, path: Path) -> str | None:
    try:
        return read_text_file(files, path).problem
    except FileNotFoundError:
        return None  # replaced or taken away at this moment
    except OSError as error:
        return f"it cannot be read ({error.strerror})"


def _check_others(
    files: FileSystem, listing: DirectoryListing, known: Collection[str], result: Verification
) -> None:
    """The files and directories beside the logs."""

    def note(severity: Severity, name: str, message: str) -> None:
        result.findings.append(DirectoryFinding(severity, listing.path / name, message))

    for name in listing.others:
        if name in (names.CHECKPOINT, names.CLEAN_SHUTDOWN, names.CLOCK, names.CLOCK_ACCEPTED):
            problem = _text_problem(files, listing.path / name)
            if problem is not None:
                note(Severity.DAMAGE, name, f"It counts as missing: {problem}.")
        elif name.endswith(names.STRAY_SUFFIX):
            note(Severity.NOTE, name, "The unused log of an earlier topic; delete it at will.")
        elif names.is_moved_directory(name):
            note(Severity.NOTE, name, "The log of a partition that moved to another broker.")
        elif name.endswith(names.CREATING_SUFFIX) or names.is_leftover(name):
            note(Severity.NOTE, name, _LEFTOVER)
        elif name != names.LOCK and name not in known:
            note(Severity.NOTE, name, "Not a file of logbus's.")
    if listing.logs and listing.others and names.CHECKPOINT not in listing.others:
        note(Severity.NOTE, names.CHECKPOINT, "There is none: the next start scans every segment.")


class LogCheck:
    """Checks one log: its names, small files, segments and indexes. Used once, by one thread."""

    def __init__(
        self,
        files: FileSystem,
        log: LogListing,
        checkpoint: LogCheckpoint | None,
        *,
        live: bool,
        clean: bool,
    ) -> None:
        self.findings: list[DirectoryFinding] = []
        self.reports: list[SegmentReport] = []
        self._files = files
        self._log = log
        self._live = live
        self._clean = clean
        self._checkpoint = checkpoint
        # A crash may lose or tear it: nothing is wrong with it unless there was none.
        self._torn = Severity.DAMAGE if clean else Severity.NOTE

    @property
    def sound(self) -> bool:
        return _sound(self.findings)

    def run(self, on_progress: OnProgress) -> None:
        self._check_names()
        self._check_start()
        segments = self._segments()
        for (base, path), following in itertools.zip_longest(segments, segments[1:]):
            try:
                report = inspect_segment(
                    self._files, path, base_offset=base, checksums=True, on_progress=on_progress
                )
            except FileNotFoundError:
                if not self._retention_was_faster(base):
                    self._find(Severity.DAMAGE, path, _GONE)
            except OSError as error:
                self._find(Severity.DAMAGE, path, f"It cannot be read: {error.strerror}.")
            else:
                self.reports.append(report)
                self._judge(path, report, following[0] if following is not None else None)

    def _retention_was_faster(self, base: int) -> bool:
        """True when a broker at work has deleted all up to the segment at ``base``.

        Such a log is whole, and if it is looked at again, it will have moved again.
        """
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
        self.findings.append(DirectoryFinding(severity, path, message))

    # -- names and small files --------------------------------------------------------------

    def _check_names(self) -> None:
        for name in self._log.others:
            path = self._log.path / name
            if name == names.PARTITION_METADATA:
                self._check_metadata(path)
            elif names.parse_producers(name) is not None:
                # Also after an orderly stop: it is not synced then, and a full disk may refuse it.
                self._check_text(path, Severity.NOTE, "It is rebuilt from the log")
            elif name in _WITHOUT_IT:
                self._check_text(path, Severity.DAMAGE, _WITHOUT_IT[name])
            elif name == names.FLUSH_FAILED:
                message = "A flush failed; the next start writes again what may not be on disk."
                self._find(Severity.NOTE, path, message)
            elif names.parse_swap(name) is not None:
                message = "A compacted segment; the next start puts it in its place."
                self._note_at_rest(path, message)
            elif names.is_leftover(name):
                self._note_at_rest(path, _LEFTOVER)
            elif is_staged(name):
                self._check_staged(path)
            else:
                self._check_other(path, names.parse_index(name))
        if names.PARTITION_METADATA not in self._log.others:
            path = self._log.path / names.PARTITION_METADATA
            self._find(Severity.DAMAGE, path, "It is missing; the next start tries to restore it.")

    def _check_other(self, path: Path, index_of: int | None) -> None:
        if index_of is None:
            self._find(Severity.NOTE, path, "Not a file that this release knows.")
        elif index_of not in self._log.base_offsets:
            self._note_at_rest(path, _LEFTOVER)

    def _check_staged(self, path: Path) -> None:
        try:
            found = inspect_staged(self._files, path)
        except FileNotFoundError:
            return
        if found.write is not None:
            message = f"Staged by the write {found.write}, which is not committed or not published."
            self._note_at_rest(path, message)

    def _note_at_rest(self, path: Path, message: str) -> None:
        """Notes a file that is there at rest; while a broker is at work, it is being written or on
        its way out."""
        if not self._live:
            self._find(Severity.NOTE, path, message)

    def _check_text(self, path: Path, severity: Severity, consequence: str) -> None:
        problem = _text_problem(self._files, path)
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

    def _judge(self, path: Path, report: SegmentReport, following: int | None) -> None:
        found = len(self.findings)
        for lost in report.damage:
            self._find(
                Severity.DAMAGE, path,
                f"Offsets {lost.start} up to {lost.end} (bytes {lost.position} to "
                f"{lost.position + lost.size_bytes}) are damaged. {lost.reason}",
            )  # fmt: skip
        if following is None:
            self._check_log_end(path, report.end_offset, report.tail)
        else:
            end = self._log.end_before(following)
            self._check_segment_end(path, report.end_offset, end, report.tail)
            if end < following:
                message = (
                    f"The offsets {end} up to {following} were given up; their records are lost."
                )
                self._find(Severity.NOTE, path, message)
        if _sound(self.findings[found:]):  # an index is compared with sound segments only
            self._check_index(path, report, last=following is None)

    def _check_segment_end(self, path: Path, end: int, following: int, tail: Damage | None) -> None:
        if end > following:
            message = (
                f"It ends at offset {end}, but the next segment begins at {following}: the "
                "offsets between are there twice."
            )
        elif tail is not None:
            message = f"Its last {tail.size_bytes} bytes are no record batches. {tail.reason}"
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

    def _check_log_end(self, path: Path, end: int, tail: Damage | None) -> None:
        flushed = self._checkpoint.recovery_point if self._checkpoint is not None else 0
        if end < flushed:
            message = f"Offsets {end} up to {flushed} were on disk and are gone."
            if tail is not None:
                message = f"{message} {tail.reason}"
            self._find(Severity.DAMAGE, path, message)
        elif tail is not None and not self._live:
            message = f"Its last {tail.size_bytes} bytes are no whole record batches. {tail.reason}"
            if not self._clean:
                message = f"{message} A crash leaves this: the next start cuts them off."
            self._find(self._torn, path, message)

    def _check_index(self, path: Path, report: SegmentReport, *, last: bool) -> None:
        """The active segment's index is in memory; on disk only after an orderly stop."""
        if last and (not self._clean or report.size_bytes == 0):
            return
        if report.index_unusable is not None:
            message = f"The broker rebuilds it when it opens the segment: {report.index_unusable}."
            # A full disk does not let it be written, and then the broker leaves none behind.
            severity = self._torn if report.has_index else Severity.NOTE
            self._find(severity, index_path(path), message)
        elif report.index_wrong is not None:
            message = f"It misleads readers: {report.index_wrong}. Stop the broker and delete it."
            self._find(Severity.DAMAGE, index_path(path), message)
