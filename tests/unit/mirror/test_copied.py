"""Record batches on their way from one log to another."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_logbus.client.fetch.batches import EncodedBatch
from spark_logbus.errors import InvalidRequestError, UnknownSchemaIdError
from spark_logbus.mirror.source.logbus import copied
from spark_logbus.mirror.source.source import NO_SCHEMAS, TargetSchemaIds
from spark_logbus.model import Compression, OffsetRange, TopicPartition
from spark_logbus.record import for_another_log, stamp, stamp_producer, verify
from spark_logbus.record.format import HEADER_SIZE
from spark_logbus.record.rows.arrow import canonical, decode, encode
from tests.builders.typed import flights, typed_record_batch

AT = TopicPartition("t", 0)
ALL = OffsetRange(AT, 0, 1_000)


def stored(data: memoryview, *, base_offset: int) -> EncodedBatch:
    """Makes a record batch as a log has it."""
    stamp_producer(data, producer_id=77, producer_epoch=0, base_sequence=5)
    stamp(data, base_offset=base_offset, leader_epoch=3, append_time_us=99)
    return EncodedBatch(verify(data), data)


def batch(count: int, *, deltas: list[int] | None = None, schema_id: int = 0) -> memoryview:
    columns = {"value": [b"%d" % number for number in range(count)]}
    records = canonical(pa.RecordBatch.from_pydict(columns), now_us=1)
    if deltas is None:
        return encode(records, compression=Compression.LZ4, schema_id=schema_id)
    records = records.append_column("offset_delta", pa.array(deltas, pa.int32()))
    return encode(records, last_offset_delta=9)


def values(data: memoryview) -> list[bytes]:
    found: list[bytes] = decode(verify(data), data).column("value").to_pylist()
    return found


@pytest.mark.parametrize("schema_id", [None, 12])
def test_only_the_header_is_made_anew(schema_id: int | None) -> None:
    raw = stored(typed_record_batch(flights(0, 100), schema_id=7), base_offset=40)
    before = bytes(raw.data)
    data = for_another_log(raw.data, schema_id=schema_id)
    header = verify(data)
    assert bytes(data[HEADER_SIZE:]) == before[HEADER_SIZE:]
    assert bytes(raw.data) == before
    assert (header.base_offset, header.leader_epoch, header.append_time_us) == (0, 0, 0)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert header.schema_id == (schema_id or 7)
    assert header.record_count == 100


def test_a_record_batch_passes_whole() -> None:
    raw = stored(batch(100), base_offset=40)
    found = copied(ALL, raw, NO_SCHEMAS)
    assert found is not None
    assert (found.start, found.end, found.record_count, found.time_us) == (40, 140, 100, 99)
    assert bytes(found.data[HEADER_SIZE:]) == bytes(raw.data[HEADER_SIZE:])


def test_one_that_compaction_joined_over_an_end_is_cut() -> None:
    raw = stored(batch(100), base_offset=40)
    found = copied(OffsetRange(AT, 50, 60), raw, NO_SCHEMAS)
    assert found is not None
    assert values(found.data) == [b"%d" % number for number in range(10, 20)]
    assert (found.start, found.end, found.record_count) == (50, 60, 10)


def test_gaps_of_compaction_are_closed() -> None:
    raw = stored(batch(3, deltas=[1, 2, 7]), base_offset=20)
    found = copied(ALL, raw, NO_SCHEMAS)
    assert found is not None
    assert not verify(found.data).has_offset_delta
    assert values(found.data) == [b"0", b"1", b"2"]
    assert (found.start, found.end, found.record_count) == (20, 30, 3)
    assert copied(OffsetRange(AT, 28, 40), raw, NO_SCHEMAS) is None


def test_fillers_are_left_out() -> None:
    empty = pa.RecordBatch.from_pydict({"value": pa.array([None], pa.binary())})
    raw = stored(encode(canonical(empty, now_us=1), control=True), base_offset=20)
    assert copied(ALL, raw, NO_SCHEMAS) is None


def test_schema_ids_are_those_of_the_target() -> None:
    raw = stored(batch(10, schema_id=7), base_offset=0)
    found = copied(ALL, raw, TargetSchemaIds({7: 12}, clash="other ids"))
    assert found is not None
    assert verify(found.data).schema_id == 12
    with pytest.raises(UnknownSchemaIdError, match="has the schema id 7, which"):
        copied(ALL, raw, NO_SCHEMAS)


def test_values_that_hold_ids_are_not_copied_where_ids_differ() -> None:
    raw = stored(batch(10), base_offset=0)
    with pytest.raises(InvalidRequestError, match=r"wire format.*same in the target: other"):
        copied(ALL, raw, TargetSchemaIds({7: 12}, clash="other ids"))
