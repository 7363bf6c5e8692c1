"""Sizes and durations as people write them in a topic's configuration. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from spark_logbus.errors import ConfigError
from spark_logbus.times import US_PER_MS, parse_duration_us

# As head -c and dd have it: K and KiB are 1024, kB is 1000.
_UNITS: Final = {
    "": 1, "b": 1,
    "k": 1 << 10, "kib": 1 << 10, "kb": 10**3,
    "m": 1 << 20, "mib": 1 << 20, "mb": 10**6,
    "g": 1 << 30, "gib": 1 << 30, "gb": 10**9,
    "t": 1 << 40, "tib": 1 << 40, "tb": 10**12,
}  # fmt: skip
_DURATIONS: Final = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))
_SIZES: Final = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def parse_size(text: str) -> int:
    """``1GiB``, ``64K``, ``500 MB`` or ``1024`` in bytes. Raises ValueError for anything else."""
    found = re.fullmatch(r"(\d{1,18})\s*([a-z]*)", text.strip().lower(), re.ASCII)
    if found is None or found[2] not in _UNITS:
        raise ValueError(f"expected a number of bytes, or with a unit, such as 64KiB, got {text!r}")
    return int(found[1]) * _UNITS[found[2]]


def topic_config(pairs: Iterable[str], *, option: str) -> dict[str, str]:
    """``key=value`` pairs as a topic's configuration, in which the keys' units are counted: ms of
    ``retention.ms=7d``, bytes of ``segment.bytes=1GiB``. What has no unit goes as it is; brokers
    know which numbers are good. ConfigError for what is no pair."""
    config = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise ConfigError(f"{option} takes key=value, got {pair!r}.")
        config[key.strip()] = _counted(key.strip(), value.strip())
    return config


def _counted(key: str, text: str) -> str:
    try:
        if key.endswith(".ms"):
            return str(parse_duration_us(text) // US_PER_MS)
        if key.endswith(".bytes"):
            return str(parse_size(text))
    except ValueError:
        pass
    return text


def in_units(key: str, text: str) -> str | None:
    """The value of a key of a topic's configuration in its largest whole unit, as ``--config``
    takes it; None for what has none."""
    units = _DURATIONS if key.endswith(".ms") else _SIZES if key.endswith(".bytes") else ()
    if text == "-1":
        return "none"
    for unit, size in units:
        if text.isdigit() and int(text) >= size and int(text) % size == 0:
            return f"{int(text) // size}{unit}"
    return None
