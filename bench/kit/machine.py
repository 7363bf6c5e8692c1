"""The machine that measures, and the versions of what is measured, as lines for the reader."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def described(*packages: str) -> list[str]:
    """Lines about machine and software; ``packages`` are those of Python whose version counts, and
    are left out where they are not installed."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    versions = [f"logbus {version('logbus')}", f"Python {platform.python_version()}"]
    for package in packages:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    kernel = ".".join(platform.release().split(".")[:2])
    return [
        f"{datetime.now(UTC):%Y-%m-%d}; {os.cpu_count()} processors ({_processor()}), "
        f"{memory_gib:.0f} GiB, {platform.system()} {kernel}; load average "
        f"{os.getloadavg()[0]:.1f} at the start.",
        f"{', '.join(versions)}.",
    ]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()
