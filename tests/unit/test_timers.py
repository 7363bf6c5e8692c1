from __future__ import annotations

import math

from spark_logbus.timers import DueHeap


class Thing:
    """Cannot be compared with others."""


def popped(heap: DueHeap[str], now: float) -> list[tuple[float, str]]:
    found = []
    while (due := heap.pop_due(now)) is not None:
        found.append(due)
    return found


def test_things_come_when_due_the_first_first() -> None:
    heap = DueHeap([(3, "c"), (1, "a")])
    heap.add(2, "b")
    heap.add(9, "d")
    assert (heap.first_due, len(heap)) == (1, 4)
    assert heap.pop_due(0.99) is None
    assert popped(heap, 3) == [(1, "a"), (2, "b"), (3, "c")]
    assert (heap.first_due, len(heap)) == (9, 1)
    assert popped(heap, math.inf) == [(9, "d")]
    assert heap.pop_due(math.inf) is None


def test_equals_come_in_the_order_of_adding() -> None:
    things = [Thing() for _ in range(5)]
    heap = DueHeap((1, thing) for thing in things[:3])
    for thing in things[3:]:
        heap.add(1, thing)
    assert [heap.pop_due(1) for _ in things] == [(1, thing) for thing in things]


def test_an_empty_heap_is_never_due() -> None:
    heap = DueHeap([(1, "a")])
    heap.clear()
    assert (heap.first_due, len(heap), heap.pop_due(math.inf)) == (math.inf, 0, None)


def test_large_offsets_are_told_apart() -> None:
    heap = DueHeap([(2**60 + 1, "later"), (2**60, "first")])
    assert popped(heap, 2**60) == [(2**60, "first")]
