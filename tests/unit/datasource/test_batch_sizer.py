"""How large the arrow batches of a task become."""

from __future__ import annotations

from spark_logbus.datasource.batch_sizer import TARGET_BYTES, TARGET_ROWS, BatchSizer


def batches(count: int, *, rows: int, size: int) -> list[int]:
    """Rows of each arrow batch when ``count`` record batches come in."""
    sizer, made, collected = BatchSizer(), [], 0
    for _ in range(count):
        collected += 1
        sizer.add(rows, size)
        if sizer.is_enough:
            sizer.handed_over()
            made.append(collected * rows)
            collected = 0
    return [*made, *([collected * rows] if collected else [])]


def test_they_grow_with_what_went_before() -> None:
    made = batches(1_000, rows=500, size=100)
    assert made[0] == 2_000
    assert made == sorted(made[:-1]) + made[-1:]
    for number, rows in enumerate(made):
        assert rows <= max(2_000, sum(made[:number]) // 4 + 500)
    assert made[-2] == TARGET_ROWS
    assert sum(made) == 500_000


def test_none_of_a_micro_batch_is_more_than_a_fourth() -> None:
    made = batches(60, rows=250, size=52_000)
    assert max(made) <= sum(made) // 4
    assert len(made) <= 10


def test_large_records_fill_them_by_bytes() -> None:
    made = batches(200, rows=1, size=200_000)
    assert made[0] == 3  # of half a MiB
    assert max(made) == -(-TARGET_BYTES // 200_000)


def test_a_large_record_batch_is_an_arrow_batch_of_its_own() -> None:
    assert batches(3, rows=20_000, size=4_000_000) == [20_000] * 3
