"""Whether a warehouse's commits are as new as its files."""

from __future__ import annotations

import pytest

from spark_logbus.load.commit import Commit
from spark_logbus.load.errors import WarehouseError
from spark_logbus.load.files.warehouse import require_newest


def commit(number: int, unique: str = "a") -> Commit:
    name = Commit.staging_name(number, unique)
    return Commit(number, name, "id", (), {}, 0, ())


def mark(number: int, unique: str = "a") -> str:
    return f"_loaded-{Commit.staging_name(number, unique)}"


@pytest.mark.parametrize(
    ("names", "last"),
    [
        (["_logbus", "date=2013-01-01"], None),  # of an earlier release
        (["_logbus", "date=2013-01-01"], commit(4)),
        ([mark(4)], commit(4)),
        ([mark(9)], commit(10)),  # which is not in yet
        ([mark(3, "z"), mark(4)], commit(4)),
        (["_loaded-", "_loaded-x", "_loadeds-7-a"], commit(4)),
    ],
)
def test_commits_as_new_as_the_files_are_gone_on_with(
    names: list[str], last: Commit | None
) -> None:
    require_newest(names, last, path="/w")


@pytest.mark.parametrize(
    ("names", "last", "told"),
    [
        ([mark(1)], None, "load 1 .*no load"),
        ([mark(10)], commit(9), "load 10 .*load 9 "),
        ([mark(4, "a")], commit(4, "b"), "load 4 .*load 4 "),
        ([mark(4, "b")], commit(4, "a"), "load 4 .*load 4 "),
        ([mark(11), mark(2)], commit(10), "load 11 .*delete /w/_loaded-0+11-a"),
    ],
)
def test_commits_that_are_older_than_the_files_are_refused(
    names: list[str], last: Commit | None, told: str
) -> None:
    with pytest.raises(WarehouseError, match=told):
        require_newest(names, last, path="/w")
