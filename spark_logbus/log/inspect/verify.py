"""Checks a whole data directory: every checksum, offset, index and small file in it.

What a crash leaves legitimately (a torn tail, an index that was never synced) is a note, what
nothing but a failing disk or a foreign hand can do is damage. Which is which depends on how the
broker left: after an orderly stop nothing may be torn. While a broker uses the directory, the end
of the last segment may be half written, and files come and go: what looks like damage then is
looked at a second time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from spark_logbus.log import names
from spark_logbus.log.checkpoint import CHECKPOINT_TITLE, LogCheckpoint, parse_checkpoint
from spark_logbus.log.filesystem import FileSystem
from spark_logbus.log.inspect.listing import DirectoryListing, in_use, list_log, read_text_file
from spark_logbus.log.inspect.log_check import (
    GONE,
    LEFTOVER,
    Finding,
    LogCheck,
    Severity,
    text_problem,
)
from spark_logbus.log.segment.scan import OnProgress, ignore_progress
from spark_logbus.model import TopicPartition


@dataclass
class Verification:
    """What was found, and how much was read. ``live``: a broker was using the directory."""

    live: bool
    clean: bool
    logs: int = 0
    segments: int = 0
    record_batches: int = 0
    records: int = 0
    size_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not any(finding.severity is Severity.DAMAGE for finding in self.findings)


def planned_bytes(listing: DirectoryListing) -> int:
    """What a verification will read, as of now."""
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
                check.findings = [Finding(Severity.NOTE, log.path, GONE)]
                break
        _add(check, result)
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


def _check_others(
    files: FileSystem, listing: DirectoryListing, known: Collection[str], result: Verification
) -> None:
    """The files and directories beside the logs."""

    def note(severity: Severity, name: str, message: str) -> None:
        result.findings.append(Finding(severity, listing.path / name, message))

    for name in listing.others:
        if name in (names.CHECKPOINT, names.CLEAN_SHUTDOWN, names.CLOCK, names.CLOCK_ACCEPTED):
            problem = text_problem(files, listing.path / name)
            if problem is not None:
                note(Severity.DAMAGE, name, f"It counts as missing: {problem}.")
        elif name.endswith(names.STRAY_SUFFIX):
            note(Severity.NOTE, name, "The log of an earlier topic, set aside; delete it at will.")
        elif name.endswith(names.CREATING_SUFFIX) or names.is_leftover(name):
            note(Severity.NOTE, name, LEFTOVER)
        elif name != names.LOCK and name not in known:
            note(Severity.NOTE, name, "Not a file of logbus's.")
    if listing.logs and listing.others and names.CHECKPOINT not in listing.others:
        note(Severity.NOTE, names.CHECKPOINT, "There is none: the next start scans every segment.")


def _add(check: LogCheck, result: Verification) -> None:
    result.logs += 1
    result.segments += check.segments
    result.record_batches += check.record_batches
    result.records += check.records
    result.size_bytes += check.size_bytes
    result.findings += check.findings
