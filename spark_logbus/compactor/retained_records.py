"""Decides which records of a record batch stay. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def retained_records(
    keys: Sequence[bytes | None],
    offsets: Sequence[int],
    tombstones: Sequence[bool] | None,
    *,
    newest: Mapping[bytes | None, int],
    end_offset: int,
    delete_horizon: int,
) -> list[bool]:
    """True for each record that stays.

    A record goes when ``newest`` knows a later one of the same key; or when it is a tombstone
    before ``delete_horizon``, where all that it deletes is gone. Records without a key stay, and
    so do those from ``end_offset`` on: the map does not cover them. ``tombstones`` marks the
    tombstones among the records; None when there is none.
    """
    if offsets[0] >= end_offset:
        return [True] * len(offsets)
    find = newest.get
    stay = [find(key, offset) <= offset for key, offset in zip(keys, offsets, strict=True)]
    if tombstones is not None and offsets[0] < delete_horizon:
        for number, (offset, tombstone) in enumerate(zip(offsets, tombstones, strict=True)):
            if tombstone and offset < delete_horizon and keys[number] is not None:
                stay[number] = False
    return stay
