"""The choice of files to rewrite, as a table."""

from __future__ import annotations

import pytest

from spark_logbus.load.small_files import SMALL_BYTES, directory_of, worth_rewriting

SMALL, LARGE = SMALL_BYTES - 1, SMALL_BYTES


@pytest.mark.parametrize(
    ("sizes", "chosen"),
    [
        ({}, ()),
        ({"d=1/a": SMALL, "d=1/b": SMALL}, ()),
        ({"d=1/a": SMALL, "d=1/b": SMALL, "d=1/c": 0}, ("d=1/a", "d=1/b", "d=1/c")),
        ({"d=1/a": SMALL, "d=1/b": SMALL, "d=1/c": LARGE}, ()),
        (
            {"d=1/a": 1, "d=1/b": 1, "d=1/c": 1, "d=1/z": LARGE, "d=2/a": 1},
            ("d=1/a", "d=1/b", "d=1/c"),  # what is large stays as it is
        ),
        ({"a": 1, "b": 1, "c": 1, "d=1/a": 1}, ("a", "b", "c")),  # without directories
        ({"d=1/h=1/a": 1, "d=1/h=2/b": 1, "d=1/h=3/c": 1}, ()),
    ],
)
def test_directories_with_many_small_files(sizes: dict[str, int], chosen: tuple[str, ...]) -> None:
    assert worth_rewriting(sizes, least=3, directory=directory_of) == chosen
