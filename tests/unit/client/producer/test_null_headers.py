"""A header that is null, or has no name, can be no record's: it is refused by all ways to send."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from spark_logbus.client import Cluster, Producer, ProducerConfig, ProducerInterceptor
from spark_logbus.client.schemas.topic import WriterSchema
from spark_logbus.errors import InvalidRequestError
from spark_logbus.record.rows.arrow import decode
from spark_logbus.topic_schemas import Encoding
from tests.builders.arrow_batches import T0
from tests.fakes.broker import FakeCluster

FINE = {"key": "", "value": None}
NO_NAME = {"key": None, "value": b"v"}
WRONG: dict[str, list[Any]] = {
    "a name": [NO_NAME],
    "an element": [None],
    "a name behind another": [FINE, NO_NAME],
    "an element behind another": [FINE, FINE, None],
}
CONFIG = ProducerConfig(linger_ms=0)


def table(wrong: list[Any], *, slice_at: int = 0) -> pa.Table:
    """Three rows, of which the second has the headers ``wrong``, behind others that are cut off."""
    headers = [[NO_NAME]] * slice_at + [None, [*wrong], [FINE]]
    kind = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
    data = pa.table({"value": [b"v"] * len(headers), "headers": pa.array(headers, kind)})
    return data.slice(slice_at)


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("slice_at", [0, 5])
def test_columns_with_such_headers_are_refused_whole(
    fake: FakeCluster, cluster: Cluster, wrong: list[Any], slice_at: int
) -> None:
    fake.create("t")
    with Producer(cluster, CONFIG) as producer:
        with pytest.raises(InvalidRequestError, match="headers of row 1 have"):
            producer.send_arrow("t", table(wrong, slice_at=slice_at))
        [batch] = table(wrong, slice_at=slice_at).to_batches()
        with pytest.raises(InvalidRequestError, match="null"):
            producer.send_arrow("t", batch)
        producer.send_arrow("t", table([FINE, {"key": "k", "value": b""}], slice_at=slice_at))
    [(header, data)] = fake.partition(T0).batches
    assert decode(header, data).column("headers").to_pylist() == [
        None,
        [FINE, {"key": "k", "value": b""}],
        [FINE],
    ]


@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_so_are_those_of_a_topic_with_a_schema(
    fake: FakeCluster, cluster: Cluster, encoding: Encoding, wrong: list[Any]
) -> None:
    fake.create("t", config={"value.encoding": encoding.value})
    text = {"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}]}
    schema = WriterSchema(encoding, 1, json.dumps(text))
    data = table(wrong).set_column(0, "value", pa.array([{"n": 1}] * 3))
    with (
        Producer(cluster, CONFIG, schemas={"t": schema}) as producer,
        pytest.raises(InvalidRequestError, match="headers of row 1 have"),
    ):
        producer.send_arrow("t", data)
    assert fake.partition(T0).batches == []


@pytest.mark.parametrize("headers", [[(None, b"v")], [None], [("k", b"v"), None], {None: b"v"}])
def test_so_are_those_of_single_records(
    fake: FakeCluster, cluster: Cluster, headers: Sequence[Any]
) -> None:
    fake.create("t")
    with Producer(cluster, CONFIG) as producer:
        with pytest.raises(InvalidRequestError, match="header"):
            producer.send("t", b"v", headers=headers)
        with pytest.raises(InvalidRequestError, match="header"):
            producer.send_many("t", [b"v", b"v"], headers=[None, headers])
    assert fake.partition(T0).batches == []


class Nameless(ProducerInterceptor):
    def before_append(self, topic: str, records: pa.RecordBatch) -> pa.RecordBatch:
        return table([NO_NAME]).to_batches()[0].slice(1, 1)


def test_so_are_those_of_an_interceptor(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    with Producer(cluster, CONFIG, interceptors=[Nameless()]) as producer:
        assert "headers of row 0" in str(producer.send("t", b"v").exception(60))
        with pytest.raises(InvalidRequestError, match="headers of row 0"):
            producer.send_arrow("t", pa.table({"value": [b"v"]}))
    assert fake.partition(T0).batches == []
