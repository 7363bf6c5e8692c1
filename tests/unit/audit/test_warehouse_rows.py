"""What is read of a warehouse's files, whichever column their directories are named after."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from spark_logbus.audit.warehouse import rows_of
from spark_logbus.errors import InvalidRequestError

AT = datetime(2026, 1, 31, tzinfo=UTC)
ROWS = [{"partition": p, "offset": o, "timestamp": AT} for p, o in ((0, 7), (0, 8), (1, 7))]


@pytest.mark.parametrize("form", ["parquet", "orc"])
@pytest.mark.parametrize(
    "directories",
    [(), ("partition",), ("offset",), ("partition", "offset")],
    ids=["none", "partition", "offset", "both"],
)
def test_rows_are_whole_however_directories_are_named(
    tmp_path: Path, directories: tuple[str, ...], form: str
) -> None:
    types = {"partition": pa.int32(), "offset": pa.int64(), "timestamp": pa.timestamp("us", "UTC")}
    for number, row in enumerate(ROWS):
        place = tmp_path.joinpath(
            "date=2026-01-31", *(f"{name}={row[name]}" for name in directories)
        )
        place.mkdir(parents=True, exist_ok=True)
        inside = {name: kind for name, kind in types.items() if name not in directories}
        table = pa.table({name: [row[name]] for name in inside}, pa.schema(inside))
        write = pq.write_table if form == "parquet" else orc.write_table
        write(table, place / f"part-{number}.{form}")
    found = rows_of(tmp_path).to_pylist()
    assert sorted(found, key=lambda row: (row["partition"], row["offset"])) == ROWS


def test_files_that_no_load_has_written_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"partition": pa.array([0], pa.int32())}), tmp_path / "part-0.parquet")
    with pytest.raises(InvalidRequestError, match="rows without 'offset'"):
        rows_of(tmp_path)
    (tmp_path / "part-1.csv").write_text("0,1")
    with pytest.raises(InvalidRequestError, match=r"part-1\.csv is none of a load's files"):
        rows_of(tmp_path)
