"""The broker's own files in its data directory, beside the logs: its id and its ports."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

from spark_logbus.errors import ConfigError, StorageError
from spark_logbus.log.disk.filesystem import (
    OS_FILES,
    storage_error,
    storage_errors,
    write_atomically,
)

logger = logging.getLogger(__name__)

_ID_FILE = "broker.id"
_PORT_FILE = "broker.port"
_METRICS_PORT_FILE = "metrics.port"
# While a compaction runs: the job of its process, and the reports on it.
COMPACTION_JOB_FILE = "compaction.job"
COMPACTION_REPORT_FILE = "compaction.reports"
BROKER_FILES = (
    _ID_FILE, _PORT_FILE, _METRICS_PORT_FILE, COMPACTION_JOB_FILE, COMPACTION_REPORT_FILE,
)  # fmt: skip
_MAX_PORT = 65_535
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def check_identity(data_dir: Path, broker_id: int) -> None:
    """Raise ConfigError when the data directory belongs to another broker id: under this one its
    logs would be lost."""
    known = _read(data_dir / _ID_FILE)
    if known is not None and known != str(broker_id):
        raise ConfigError(
            f"The data directory {data_dir} belongs to broker {known!r}, but the configuration "
            f"says id = {broker_id}; use that id or another data_dir."
        )


def claim_identity(data_dir: Path, broker_id: int) -> None:
    """Make the data directory that broker's, if it is nobody's; call with its lock held."""
    check_identity(data_dir, broker_id)
    if _read(data_dir / _ID_FILE) is None:
        _write(data_dir / _ID_FILE, str(broker_id))


def keep_private(data_dir: Path) -> None:
    """Let nobody else into the data directory: its files can be read by all, so that rules about
    topics would bind nobody on this machine. Raises ConfigError where that is not up to us."""
    mode = stat.S_IMODE(data_dir.stat().st_mode)
    if not mode & _OTHERS:
        return
    try:
        data_dir.chmod(mode & ~_OTHERS)
    except OSError as error:
        raise ConfigError(
            f"Others may read the records in {data_dir}, whatever rules say, and that cannot "
            f"be changed: {error.strerror}. Have its owner do it: chmod 700 {data_dir}"
        ) from error
    logger.info("Nobody else may enter the data directory %s from now on.", data_dir)


def remembered_port(data_dir: Path) -> int | None:
    """The port of the last run; None when there was none that can be used."""
    return _read_port(data_dir / _PORT_FILE)


def remember_port(data_dir: Path, port: int) -> None:
    """Keep the port for the next start, which takes any port if the disk refuses that (full)."""
    _remember(data_dir / _PORT_FILE, port)


def remembered_metrics_port(data_dir: Path) -> int | None:
    return _read_port(data_dir / _METRICS_PORT_FILE)


def remember_metrics_port(data_dir: Path, port: int) -> None:
    """Keeps the metrics port for the next start, as ``remember_port`` does."""
    _remember(data_dir / _METRICS_PORT_FILE, port)


def _remember(path: Path, port: int) -> None:
    if _read_port(path) == port:
        return
    try:
        _write(path, str(port))
    except StorageError as error:
        logger.warning("%s The next start may take another port.", error)


def _read_port(path: Path) -> int | None:
    text = _read(path) or ""
    return int(text) if text.isdecimal() and 0 < int(text) <= _MAX_PORT else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", errors="replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error("read", path, error) from error


def _write(path: Path, text: str) -> None:
    with storage_errors("write", path):
        write_atomically(OS_FILES, path, f"{text}\n".encode())
