"""Logical types: which are known, and which may be read as which.

A logical type says what numbers or bytes mean. Avro resolves the type below it only, so a reader
would take the days of a date for milliseconds. Here data is read under another schema only if it
goes on to mean the same, or if one of the two schemas says of a number no more than that it is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

#: Those that are known, and the types they stand on; others are left out, as the specification
#: wants it.
_BASES: Final = {
    "decimal": ("bytes", "fixed"),
    "uuid": ("string", "fixed"),
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "timestamp-nanos": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "local-timestamp-nanos": ("long",),
    "duration": ("fixed",),
}
_SIZES: Final = {"uuid": 16, "duration": 12}
_UNITS: Final = ("-millis", "-micros", "-nanos")


class Meaning(NamedTuple):
    """The meaning of a type's values; ``precision`` and ``scale`` are those of a decimal."""

    logical: str | None = None
    precision: int = 0
    scale: int = 0

    @property
    def family(self) -> str | None:
        """The logical type without its unit: ``timestamp``, ``local-timestamp``, ``time``."""
        name = self.logical
        unit = next((one for one in _UNITS if name and name.endswith(one)), "")
        return name.removesuffix(unit) if name else None

    def __str__(self) -> str:
        if self.logical == "decimal":
            return f"decimal({self.precision}, {self.scale})"
        return self.logical or ""


PLAIN: Final = Meaning()


def meaning_of(kind: str, properties: Mapping[str, Any], *, size: int = 0) -> Meaning:
    """The meaning of a type of that ``kind``; ``size`` is that of a fixed."""
    logical = properties.get("logicalType")
    if not isinstance(logical, str) or kind not in _BASES.get(logical, ()):
        return PLAIN
    if kind == "fixed" and size != _SIZES.get(logical, size):
        return PLAIN
    if logical == "decimal":
        return Meaning(logical, properties["precision"], properties.get("scale", 0))
    return Meaning(logical)


def keeps_meaning(writer: Meaning, reader: Meaning, *, same_kind: bool) -> bool:
    """Can a reader take what was written, by what the two mean? ``same_kind``: it need not be
    promoted.

    - Decimals keep their scale, and may gain digits. Neither they nor durations are read as plain
      bytes, or bytes as them.
    - Moments, moments of a local clock and times of a day may change their unit.
    - Other logical types are read as the plain type, whose values are the numbers that were
      written; and a plain type as a logical one on the very same type.
    """
    if "decimal" in (writer.logical, reader.logical):
        return (
            writer.logical == reader.logical
            and writer.scale == reader.scale
            and writer.precision <= reader.precision
        )
    if writer.family == reader.family:
        return True
    if "duration" in (writer.logical, reader.logical):
        return False
    if "uuid" in (writer.logical, reader.logical):
        return True  # it is the text, or the bytes, that it stands on
    return reader == PLAIN or (writer == PLAIN and same_kind)
