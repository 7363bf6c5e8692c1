"""Inspects data directories from outside, of a broker at work or not; for ``dump`` and ``verify``.

Nothing is locked, written or repaired here, and damage is reported, not raised: only ``OSError``
of the disk is left to the caller. A directory that a broker is using changes meanwhile, so a file
that was listed may be gone when it is opened, and the last segment may grow.
"""

from spark_logbus.log.inspect.listing import (
    DirectoryListing,
    LogListing,
    TextFile,
    in_use,
    is_text_file,
    list_directory,
    read_text_file,
)
from spark_logbus.log.inspect.segment_report import (
    Damage,
    IndexReport,
    SegmentReport,
    inspect_index,
    inspect_segment,
    read_segment,
)
from spark_logbus.log.inspect.staged_report import StagedReport, inspect_staged, is_staged
from spark_logbus.log.inspect.verify import (
    DirectoryFinding,
    Severity,
    Verification,
    planned_bytes,
    verify_directory,
)

__all__ = [
    "Damage",
    "DirectoryFinding",
    "DirectoryListing",
    "IndexReport",
    "LogListing",
    "SegmentReport",
    "Severity",
    "StagedReport",
    "TextFile",
    "Verification",
    "in_use",
    "inspect_index",
    "inspect_segment",
    "inspect_staged",
    "is_staged",
    "is_text_file",
    "list_directory",
    "planned_bytes",
    "read_segment",
    "read_text_file",
    "verify_directory",
]
