from __future__ import annotations

import pytest

from spark_logbus.network.memory import BufferPool


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 1 << 20, (1 << 20) + 1])
def test_a_buffer_has_the_size_that_was_asked_for(size: int) -> None:
    buffers = BufferPool()
    for _ in range(2):
        view = buffers.take(size)
        assert len(view) == size
        assert not view.readonly
        buffers.give(view)


def test_a_buffer_is_used_again_for_sizes_like_its_own() -> None:
    buffers = BufferPool()
    first = buffers.take(1_000_000)
    memory = first.obj
    buffers.give(first)
    assert buffers.take(990_000).obj is memory
    assert buffers.take(990_000).obj is not memory, "it is in use"
    buffers.give(first)
    assert buffers.take(500_000).obj is not memory, "too large"


def test_what_lies_ready_is_bounded() -> None:
    buffers = BufferPool()
    views = [buffers.take(16 << 20) for _ in range(4)]
    for view in views:
        buffers.give(view)
    assert buffers._kept_bytes == 32 << 20


def test_what_was_used_is_bounded_though_it_is_in_use_again() -> None:
    buffers = BufferPool()
    for _ in range(3):
        views = [buffers.take(16 << 20) for _ in range(4)]
        for view in views:
            buffers.give(view)
        again = [buffers.take(16 << 20) for _ in range(4)]
        used = {id(view.obj) for view in views} & {id(view.obj) for view in again}
        assert len(used) <= 2
        assert buffers._kept_bytes == 32 << 20
        for view in again:
            buffers.give(view)


def test_memory_of_others_is_not_kept() -> None:
    buffers = BufferPool()
    buffers.give(memoryview(bytes(1 << 20)))
    buffers.give(memoryview(b""))
    assert buffers._kept_bytes == 0
