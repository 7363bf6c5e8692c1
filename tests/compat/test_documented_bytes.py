"""The hexdumps in docs/formats are what the commands beside them print."""

from __future__ import annotations

import re
from pathlib import Path

from spark_logbus.protocol import (
    Api,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
    encode_request,
    encode_response,
    frame_head,
)
from tests.compat.make_column_record_batches import BINARY as COLUMNS_BINARY
from tests.compat.make_record_batches import BINARY

FORMATS = Path(__file__).parents[2] / "docs" / "formats"
_LINE = re.compile(r"^\d{7}((?: [0-9a-f]{2})+)  .*$", re.MULTILINE)


def documented(page: str) -> bytes:
    """All bytes that are dumped on a page, one dump after the other."""
    return bytes.fromhex("".join(_LINE.findall((FORMATS / page).read_text(encoding="utf-8"))))


def test_record_batch() -> None:
    plain, columns = BINARY.read_bytes()[:312], COLUMNS_BINARY.read_bytes()[:336]
    assert documented("record-batch.md") == plain + columns


def test_protocol() -> None:
    request = FetchRequest(500, 1, 1 << 20, [FetchPartition("clicks", 0, 42, 1 << 20)])
    response = FetchResponse([FetchResult("clicks", 0, 296, 0, 43)])
    asked = encode_request(request)
    answered = encode_response(response)
    assert documented("protocol.md") == frame_head(
        api=Api.FETCH, version=1, correlation=7, header=asked
    ) + frame_head(api=Api.FETCH, version=1, correlation=7, header=answered, payload_length=296)
