"""Memory of Arrow's allocator for payloads: aligned, and freed when the last arrow batch that looks
into it is gone."""

from __future__ import annotations


def arrow_memory(size: int) -> memoryview:
    import pyarrow as pa  # a command that only asks brokers for metadata starts without it

    return memoryview(pa.allocate_buffer(size)).cast("B")
