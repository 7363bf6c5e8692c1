"""Arrow messages with certain columns, as Arrow writes them here: their metadata recognised, and
written for others.

Messages with the same columns and the same compression differ in some numbers only: of records, of
nulls, of where the buffers are. All else is a constant, which versions of Arrow have in common. So
the metadata of many messages is an array with a row for each, of words of 8 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa

from spark_logbus.model import Compression
from spark_logbus.record.gather import Int64s
from spark_logbus.record.rows.ipc import KnownMessage
from spark_logbus.record.rows.serialize import serialized

WORD: Final = 8


class ColumnMessages:
    """Messages that have those columns. Immutable."""

    def __init__(self, fields: tuple[pa.Field, ...], compression: Compression) -> None:
        # As nullable fields: metadata says nothing of that.
        self.schema = pa.schema(list(fields))
        #: What stands before the messages in a stream of them.
        self.schema_message: bytes = self.schema.serialize().to_pybytes()
        sample = pa.RecordBatch.from_arrays(
            [pa.nulls(1, field.type) for field in fields], schema=self.schema
        )
        payload = serialized(
            sample,
            room=0,
            schema_message_size=len(self.schema_message),
            compression=compression,
        )
        known = KnownMessage.of(payload)
        assert known is not None, "Arrow aligns the numbers of its messages"
        self._words = known.words
        #: Where their numbers are.
        self.form = known.form
        #: True if each row of metadata is of such a message, but for its numbers.
        self.are_all = known.are_all

    @property
    def metadata_size(self) -> int:
        """Bytes before the body."""
        return self.form.words * WORD

    def metadata(
        self,
        record_counts: Int64s | int,
        body_lengths: Int64s | int,
        nodes: Sequence[Int64s],
        buffers: Sequence[Int64s],
    ) -> Int64s:
        """The metadata of messages with those numbers. Of each column, ``nodes`` and ``buffers``
        have a row for each message, of pairs."""
        form, count = self.form, len(nodes[0])
        words = np.empty((count, form.words), np.int64)
        words[:] = self._words
        words[:, form.record_count], words[:, form.body_length] = record_counts, body_lengths
        for numbers, places in ((nodes, form.nodes), (buffers, form.buffers)):
            words[:, places.start : places.stop] = np.concatenate(numbers, axis=1).reshape(
                count, -1
            )
        return words


@lru_cache(maxsize=256)
def column_messages(fields: tuple[pa.Field, ...], compression: Compression) -> ColumnMessages:
    """The messages with those columns, at least one of which has buffers."""
    return ColumnMessages(fields, compression)
