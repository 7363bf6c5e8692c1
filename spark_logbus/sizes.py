"""Sizes as people read them. Pure."""

from __future__ import annotations


def human_bytes(size: float) -> str:
    """A number of bytes in the unit that fits, such as ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
