"""The refusal of a directory that is not a broker's."""

from __future__ import annotations

from pathlib import Path


def holds_no_logs(directory: Path) -> str:
    """Say that the directory holds no logs, and which directory below, as of `logbus up`, does."""
    from spark_logbus.log import OS_FILES
    from spark_logbus.log.inspect import list_directory

    said = f"{directory} holds no logs: name the data_dir of a broker"
    for below in sorted([*directory.glob("data"), *directory.glob("broker-*/data")]):
        try:
            if list_directory(OS_FILES, below.absolute()) is not None:
                return f"{said}, such as {below}."
        except OSError:
            continue  # a hint that cannot be given
    return f"{said}."
