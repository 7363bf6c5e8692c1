"""Many places of one buffer, copied together. Pure.

Small record batches are many, and a slice of each as a Python object takes longer than its bytes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_logbus.record import compute as pc

Int64s = npt.NDArray[np.int64]

_STEP: Final = 8  # all that is looked for in record batches begins at a multiple of it


def windows(data: memoryview, starts: Int64s, size: int) -> npt.NDArray[np.void]:
    """The ``size`` bytes from each of ``starts`` on, which are multiples of 8; an element each.

    Raises IndexError for what does not lie within ``data``.
    """
    count = (len(data) - size) // _STEP + 1
    if count <= 0:
        raise IndexError(f"{len(data)} bytes hold none of {size}.")
    every: npt.NDArray[np.void] = np.ndarray((count,), f"V{size}", data, strides=(_STEP,))
    return every[starts // _STEP]


def pieces(data: memoryview, starts: Int64s, sizes: Int64s) -> pa.Buffer:
    """``sizes`` bytes from each of ``starts`` on, one after the other, in memory of Arrow's pool.

    Raises IndexError for what does not lie within ``data``.
    """
    stops = starts + sizes
    if starts.min() < 0 or sizes.min() < 0 or stops.max() > len(data):
        raise IndexError(f"A piece lies outside of {len(data)} bytes.")
    # As binary values, of which every other one is a piece. Those between are never looked at, and
    # may have any length, also below 0; the last one is empty.
    count, end = len(starts), int(stops.max())
    edges = np.full(2 * count + 2, end, np.int64)
    edges[:-2:2], edges[1:-2:2] = starts, stops
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(data)]
    values = pa.Array.from_buffers(pa.large_binary(), 2 * count + 1, buffers, 0)
    # Arrow first takes memory for as many values of mean length as are chosen. Where the pieces
    # need more, it would copy them once again; so the empty one is chosen as often as that lacks.
    span, total = end - int(starts[0]), int(sizes.sum())
    enough = -(-len(values) * total // span) if span >= total > 0 else 0
    chosen = np.full(max(count, enough), 2 * count, np.int64)
    chosen[:count] = np.arange(0, 2 * count, 2)
    numbers = pa.Array.from_buffers(pa.int64(), len(chosen), [None, pa.py_buffer(chosen)], 0)
    options = pc.TakeOptions(boundscheck=False)
    return pc.call_function("array_take", [values, numbers], options).buffers()[2]
