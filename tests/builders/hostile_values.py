"""Values that no client of ours puts into a request."""

from __future__ import annotations

from typing import Any, Final

# A topic that is not the one of the client that must go on being served.
TOPIC: Final = "fuzzed"

NUMBERS: Final = [
    -(1 << 63), -(1 << 31), -1, 0, 1, 2, 127, 128, 255, 256, 4095, 65_535, 65_536, (1 << 31) - 1,
    1 << 31, (1 << 32) - 1, 1 << 32, (1 << 43) - 1, 1 << 43, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
]  # fmt: skip
TEXTS: Final = [
    "", ".", "..", "../x", "../../escape", "a/b", "\0", "é", "\U0001f600", "x" * 249, "x" * 250,
    "x" * 10_000, "none", "written", "flushed", "earliest", "latest", "timestamp", "retention.ms",
    "-1", "0-1048574", "1,1", "nan", "1e999", TOPIC,
]  # fmt: skip
OTHERS: Final[list[Any]] = [
    None, True, 0.5, float("nan"), float("inf"), b"", b"bytes", [], {}, [[]], {"": {}}, [1, "a"],
]  # fmt: skip
