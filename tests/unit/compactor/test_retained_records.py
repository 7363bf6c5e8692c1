from __future__ import annotations

import pytest

from spark_logbus.compactor.newest import ENTRY_BYTES, NewestOffsets
from spark_logbus.compactor.retained_records import retained_records

A, B, C = b"a", b"b", b"c"


@pytest.mark.parametrize(
    ("keys", "offsets", "dead", "newest", "end", "delete_horizon", "expected"),
    [
        ([A, B, A], [5, 6, 7], None, {A: 7, B: 6}, 8, 0, [False, True, True]),
        ([A, B], [5, 6], None, {A: 20}, 21, 0, [False, True]),  # clean records have no entry
        ([None, A, None], [5, 6, 7], None, {A: 9}, 10, 0, [True, False, True]),
        ([A, A], [10, 11], None, {A: 9}, 10, 0, [True, True]),  # not covered by the map
        ([A, B], [5, 6], [True, False], {A: 5, B: 6}, 7, 0, [True, True]),  # too young to go
        ([A, B], [5, 6], [True, True], {}, 90, 6, [False, True]),  # the end is exclusive
        ([A, B], [5, 6], [True, True], {}, 90, 7, [False, False]),
        ([A, None], [5, 6], [True, True], {}, 90, 9, [False, True]),  # null, but no tombstone
        ([A, C], [5, 6], [False, True], {A: 8, C: 8}, 9, 9, [False, False]),
        ([b""], [5], None, {b"": 6}, 7, 0, [False]),  # an empty key is a key
    ],
)
def test_survivors(
    keys: list[bytes | None],
    offsets: list[int],
    dead: list[bool] | None,
    newest: dict[bytes | None, int],
    end: int,
    delete_horizon: int,
    expected: list[bool],
) -> None:
    found = retained_records(
        keys, offsets, dead, newest=newest, end_offset=end, delete_horizon=delete_horizon
    )
    assert found == expected


def test_the_map_keeps_the_newest_and_no_null_key() -> None:
    newest = NewestOffsets(map_bytes=1 << 20)
    newest.add([A, None, B], [1, 2, 3], key_bytes=2)
    newest.add([A, None], [9, 10], key_bytes=1)
    assert newest.by_key == {A: 9, B: 3}
    assert len(newest) == 2


def test_the_map_is_full_by_keys_not_by_records() -> None:
    newest = NewestOffsets(map_bytes=3 * (ENTRY_BYTES + 1))
    newest.add([A] * 1000, range(1000), key_bytes=1000)
    assert not newest.full
    newest.add([B, C], [1000, 1001], key_bytes=2)
    assert newest.full
