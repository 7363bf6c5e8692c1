"""Tables of a lake that others drop, set back and clear up, beside loads with dead letters."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import deltalake
import pytest
from pyiceberg.catalog import load_catalog

from spark_logbus.load import DeltaTable, IcebergTable, WarehouseError
from spark_logbus.load import run as load_run
from spark_logbus.load.lake.marks import Mark, OwnDirectory
from spark_logbus.load.lake.target import LakeTarget
from spark_logbus.load.tables import TableOfLake
from tests.helpers import spanning
from tests.integration.load.loaded_directory import KilledError
from tests.integration.load.loaded_lake import FORMATS, LoadedLake
from tests.integration.load.loaded_table import NoLock
from tests.integration.load.test_into_lake import restore

DECODE: dict[str, Any] = {"json_schema": "n int", "dead_letters": True}


def first(patch: pytest.MonkeyPatch, step: str, what: Callable[[], None]) -> None:
    """Has ``what`` done before a step of the next load."""
    original = getattr(LakeTarget, step)
    done: list[str] = []

    def run(self: LakeTarget, *given: Any) -> Any:
        if not done:
            done.append(step)
            what()
        return original(self, *given)

    patch.setattr(LakeTarget, step, run)


def drop(table: TableOfLake) -> None:
    match table:
        case DeltaTable(uri):
            shutil.rmtree(uri)
        case IcebergTable():
            load_catalog(table.catalog, **table.properties).purge_table(table.identifier)


@pytest.mark.parametrize(
    ("lake", "which"), spanning(FORMATS, ["lake", "letters"]), indirect=["lake"]
)
def test_files_that_are_cleared_away_before_the_commit_are_in_none(
    lake: LoadedLake, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.produce('{"n": 0}', "{")
    lake.load(**DECODE)
    known = lake.data_files()
    lake.produce('{"n": 2}', "{")

    def vacuum() -> None:
        for path in lake.data_files():
            if path not in known and ("_dead_letters" in str(path)) == (which == "letters"):
                path.unlink()

    with monkeypatch.context() as patch:
        first(patch, "commit", vacuum)
        with pytest.raises(WarehouseError, match=r"gone before (its|their) commit"):
            lake.load(**DECODE)
    assert lake.rows("offset", "n") == [(0, 0)]
    lake.load(**DECODE)
    assert lake.rows("offset", "n") == [(0, 0), (2, 2)]
    assert lake.rows("offset", letters=True) == [(1,), (3,)]


def test_dead_letters_that_are_cleared_away_after_the_commit_come_again(
    lake: LoadedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.produce('{"n": 0}', "{")
    with monkeypatch.context() as patch:
        first(patch, "publish", lambda: drop(lake.table.dead_letters))
        with pytest.raises(WarehouseError, match="is gone from"):
            lake.load(**DECODE)
    (mark,) = lake.marks()
    with pytest.raises(WarehouseError, match=rf"{mark.name}.*reprocess.py with --dead-letters"):
        lake.load()
    mark.unlink()
    lake.reprocess("earliest", **DECODE)
    assert lake.rows("offset", "n") == [(0, 0)]
    assert lake.rows("offset", letters=True) == [(1,)]


def test_dead_letters_of_a_table_that_was_set_back_are_there_once(lake: LoadedLake) -> None:
    lake.produce('{"n": 0}', "{")
    lake.load(**DECODE)
    lake.produce('{"n": 2}', "{")
    lake.load(**DECODE)
    restore(lake)
    lake.load(accept_restore=True, **DECODE)
    assert lake.rows("offset", "n") == [(0, 0), (2, 2)]
    assert lake.rows("offset", letters=True) == [(1,), (3,)]


def test_dead_letters_that_decode_for_the_load_of_a_table_set_back_are_none(
    lake: LoadedLake,
) -> None:
    lake.produce('{"n": 0}')
    lake.load(**DECODE)
    lake.produce('{"n": 1, "m": "one"}', "{")
    with_both = {**DECODE, "json_schema": "n int, m int"}
    lake.load(evolve=True, **with_both)
    assert lake.rows("offset", letters=True) == [(1,), (2,)]
    restore(lake)
    lake.load(accept_restore=True, **DECODE)
    assert lake.rows("offset", "n") == [(0, 0), (1, 1)]
    assert lake.rows("offset", letters=True) == [(2,)]


def test_a_table_that_is_made_again_has_all_dead_letters_once(lake: LoadedLake) -> None:
    for number in (0, 2):
        lake.produce(f'{{"n": {number}}}', "{")
        lake.load(**DECODE)
    drop(lake.table)
    lake.load(**DECODE)
    lake.produce('{"n": 4}', "{")
    lake.load(**DECODE)
    assert lake.rows("offset", "n") == [(0, 0), (2, 2), (4, 4)]
    assert lake.rows("offset", letters=True) == [(1,), (3,), (5,)]


def test_dead_letters_of_another_topic_are_left_alone(lake: LoadedLake) -> None:
    lake.produce("{")
    lake.load(**DECODE)
    drop(lake.table)
    lake.topic = lake.logbus.topic(partitions=2)
    lake.produce('{"n": 0}')
    lake.load(**DECODE)
    lake.produce("{")
    with pytest.raises(WarehouseError, match="Rename it or drop it"):
        lake.load(**DECODE)
    drop(lake.table.dead_letters)
    lake.load(**DECODE)
    assert lake.rows("topic", "offset", letters=True) == [(lake.topic, 1)]


def test_dead_letters_of_a_load_that_commits_and_dies_while_marks_are_read_are_put(
    lake: LoadedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Takes the lock away: the other load does that within the recovery of this one."""
    lake.produce('{"n": 0}', "{")
    lake.load(**DECODE)
    lake.produce('{"n": 2}', "{")
    monkeypatch.setattr(load_run, "Lock", NoLock)
    marks, began = OwnDirectory.marks, [False]

    def die(*_: Any) -> None:
        raise KilledError

    def meanwhile(self: OwnDirectory) -> list[Mark]:
        if not began[0]:
            began[0] = True
            with monkeypatch.context() as patch:
                patch.setattr(LakeTarget, "publish", die)
                with pytest.raises(KilledError):
                    lake.load(**DECODE)
        return marks(self)

    monkeypatch.setattr(OwnDirectory, "marks", meanwhile)
    lake.load(**DECODE)
    assert lake.rows("offset", "n") == [(0, 0), (2, 2)]
    assert lake.rows("offset", letters=True) == [(1,), (3,)]
    assert lake.marks() == []


def test_a_first_load_does_not_commit_to_a_table_that_was_made_again(
    lake: LoadedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.produce("a")

    def make_again() -> None:
        match lake.table:
            case DeltaTable(uri):
                schema = deltalake.DeltaTable(uri).schema()
                drop(lake.table)
                deltalake.DeltaTable.create(uri, schema, partition_by=["date"])
            case IcebergTable() as name:
                catalog = load_catalog(name.catalog, **name.properties)
                table = catalog.load_table(name.identifier)
                drop(name)
                catalog.create_table(name.identifier, table.schema(), partition_spec=table.spec())

    with monkeypatch.context() as patch:
        first(patch, "commit", make_again)
        with pytest.raises(WarehouseError, match="was dropped and made again"):
            lake.load()
    assert lake.load().records == 1
    assert lake.values() == ["a"]
