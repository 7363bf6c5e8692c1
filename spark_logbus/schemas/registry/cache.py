"""Schemas by id, in memory: an id stands for one schema for ever, so it is looked up once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from avro_columns.model import Schema
from spark_logbus.schemas.registry.subjects import Content

# Of texts; their models take some ten times as much.
_MAX_BYTES: Final = 4 << 20


@dataclass(slots=True)
class Known:
    """``schema`` is None until somebody wants it parsed."""

    content: Content
    schema: Schema | None = None


class SchemaCache:
    """The schemas that were used last, up to 4 MiB of their texts. Thread-safe."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._known: OrderedDict[int, Known] = OrderedDict()
        self._bytes = 0

    def get(self, schema_id: int) -> Known | None:
        with self._lock:
            known = self._known.get(schema_id)
            if known is not None:
                self._known.move_to_end(schema_id)
            return known

    def put(self, schema_id: int, content: Content, schema: Schema | None = None) -> None:
        with self._lock:
            there = self._known.pop(schema_id, None)
            if there is not None:
                self._bytes -= len(there.content.text)
            self._known[schema_id] = Known(content, schema)
            self._bytes += len(content.text)
            while self._bytes > self._max_bytes and len(self._known) > 1:
                _, oldest = self._known.popitem(last=False)
                self._bytes -= len(oldest.content.text)

    def drop(self, schema_id: int) -> None:
        """Forget an id that was deleted permanently."""
        with self._lock:
            there = self._known.pop(schema_id, None)
            if there is not None:
                self._bytes -= len(there.content.text)
