"""Datums that fastavro writes."""

from __future__ import annotations

import io
from typing import Any

import fastavro


def without_logical(schema: Any) -> Any:
    """``schema`` as fastavro reads plain values by."""
    if isinstance(schema, dict):
        dropped = ("logicalType", "precision", "scale")
        return {key: without_logical(part) for key, part in schema.items() if key not in dropped}
    return [without_logical(part) for part in schema] if isinstance(schema, list) else schema


def datum(parsed: Any, value: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, parsed, value)
    return buffer.getvalue()
