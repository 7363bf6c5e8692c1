from __future__ import annotations

import pyarrow as pa
from msgspec.structs import replace

from spark_logbus.client.fetch.batches import FetchedBatch
from spark_logbus.client.fetch.records import records_of
from spark_logbus.client.fetch.tables import SCHEMA, table_of
from spark_logbus.model import TimestampType, TopicPartition
from spark_logbus.record import verify
from spark_logbus.record.rows.arrow import decode, encode
from spark_logbus.record.rows.columns import payload_schema

AT = TopicPartition("t", 3)


def fetched(
    base_offset: int, *, kind: TimestampType = TimestampType.CREATE_TIME, gaps: bool = False
) -> FetchedBatch:
    schema = payload_schema(has_key=False, has_headers=False, has_offset_delta=gaps)
    columns: dict[str, list[object]] = {"timestamp": [7, 8], "value": [b"a", None]}
    if gaps:
        columns["offset_delta"] = [2, 5]
    data = encode(pa.RecordBatch.from_pydict(columns, schema=schema), timestamp_type=kind)
    data[:8] = base_offset.to_bytes(8, "little")
    header = replace(verify(data), append_time_us=99)
    first = base_offset + 2 if gaps else base_offset
    return FetchedBatch(AT, first, decode(header, data), header)


def test_batches_of_all_kinds_make_one_table() -> None:
    batches = [
        fetched(10), fetched(20, kind=TimestampType.LOG_APPEND_TIME), fetched(30, gaps=True)
    ]  # fmt: skip
    table = table_of(batches)
    table.validate(full=True)
    assert table.schema == SCHEMA
    assert table.column("offset").to_pylist() == [10, 11, 20, 21, 32, 35]
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [7, 8, 99, 99, 7, 8]
    assert table.column("value").to_pylist() == [b"a", None] * 3
    assert set(table.column("partition").to_pylist()) == {3}
    records = [record for batch in batches for record in records_of(batch)]
    assert [record.offset for record in records] == table.column("offset").to_pylist()
    assert [record.timestamp_us for record in records] == [7, 8, 99, 99, 7, 8]
    assert [record.headers for record in records] == [()] * 6


def test_nothing_is_an_empty_table() -> None:
    assert table_of([]).schema == SCHEMA
    assert table_of([]).num_rows == 0
