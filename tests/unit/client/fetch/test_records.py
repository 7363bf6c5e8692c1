"""Single records of arrow batches whose headers are not as producers make them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_logbus.cli.data.record_format import as_json, by_format
from spark_logbus.client import Cluster, Consumer, ConsumerConfig
from spark_logbus.model import Compression
from spark_logbus.record.rows.arrow import HEADERS, TIMESTAMP, encode
from tests.builders.arrow_batches import T0
from tests.fakes.broker import FakeCluster

HEADERS_THAT_LACK: list[list[dict[str, Any] | None] | None] = [
    [None],
    [{"key": None, "value": b"x"}, {"key": "a", "value": b"1"}],
    [{"key": "b", "value": None}],
    None,
    [],
]
EXPECTED = [(("", None),), (("", b"x"), ("a", b"1")), (("b", None),), (), ()]


def that_lack(repeated: int = 1, compression: Compression = Compression.NONE) -> memoryview:
    """A record batch as no producer makes it."""
    rows = HEADERS_THAT_LACK * repeated
    columns = {
        "timestamp": pa.array([1] * len(rows), pa.int64()).cast(TIMESTAMP),
        "value": pa.array([b"v"] * len(rows), pa.binary()),
        "headers": pa.array(rows, HEADERS),
    }
    return encode(pa.record_batch(columns), compression=compression)


@pytest.mark.parametrize(
    "batches",
    [[that_lack()], [that_lack()] * 20, [that_lack(20, Compression.ZSTD)]],
    ids=["one", "together", "compressed"],
)
def test_headers_without_names_hold_up_nobody(
    fake: FakeCluster, cluster: Cluster, batches: list[memoryview]
) -> None:
    fake.create("t")
    for one in batches:
        fake.append(T0, one)
    with Consumer(cluster, ConsumerConfig(max_wait_ms=20)) as consumer:
        consumer.assign([T0])
        count = fake.partition(T0).end
        table = consumer.to_arrow()
        assert table.column("headers").to_pylist() == HEADERS_THAT_LACK * (count // 5)
        consumer.seek(T0, 0)
        records = [next(consumer) for _ in range(count)]
        assert [record.headers for record in records] == EXPECTED * (count // 5)
        consumer.seek(T0, 3)
        assert [record.headers for record in consumer.poll(60, max_records=2)] == EXPECTED[3:]
    assert by_format("%h")(records[1]) == b"=x,a=1"
    assert b'"headers": [["", "x"], ["a", "1"]]' in as_json(records[1])
