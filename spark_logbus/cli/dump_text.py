"""Record batches and records as ``logbus dump`` shows them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from spark_logbus.cli.output import utc

if TYPE_CHECKING:
    from spark_logbus.record import RecordBatchHeader


def _attributes(header: RecordBatchHeader) -> list[str]:
    known = {
        "key": header.has_key, "headers": header.has_headers, "gaps": header.has_offset_delta,
        "control": header.is_control, "append time": header.timestamp_type.value == 1,
    }  # fmt: skip
    return [name for name, there in known.items() if there]


def batch_row(header: RecordBatchHeader, position: int) -> list[str]:
    producer = f"{header.producer_id}/{header.producer_epoch}/{header.base_sequence}"
    return [
        f"{position:,}",
        f"{header.base_offset:,} - {header.last_offset:,}",
        f"{header.record_count:,}",
        f"{header.size:,}",
        str(header.leader_epoch),
        utc(header.max_timestamp_us),
        header.compression.name.lower(),
        ", ".join(_attributes(header)) or "-",
        producer if header.producer_id >= 0 else "-",
        "ok",
    ]


def batch_fields(header: RecordBatchHeader) -> dict[str, object]:
    plain = {name: getattr(header, name) for name in header.__slots__}
    named = {"compression": header.compression.name.lower(), "flags": _attributes(header)}
    return {**plain, "last_offset": header.last_offset, "bytes": header.size, **named}


def decoded(header: RecordBatchHeader, data: bytes) -> Iterator[dict[str, Any]]:
    from spark_logbus.record.arrow import decode

    batch = decode(header, data)
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns["timestamp"] = columns["timestamp"].cast("int64")  # also those beyond a datetime
    rows = {name: column.to_pylist() for name, column in columns.items()}
    for number in range(len(rows["value"])):
        record = {name: row[number] for name, row in rows.items()}
        record["offset"] = header.base_offset + record.pop("offset_delta", number)
        yield record


def record_line(record: dict[str, Any]) -> str:
    fields = [str(record["offset"]), utc(record["timestamp"]), repr(record.get("key"))]
    fields.append(repr(record["value"]))
    if record.get("headers"):
        fields.append(repr([(h["key"], h["value"]) for h in record["headers"]]))
    return "\t".join(fields)


def record_fields(record: dict[str, Any]) -> dict[str, object]:
    headers = record.get("headers") or []
    return {
        "offset": record["offset"],
        "timestamp_us": record["timestamp"],
        "key": _text(record.get("key")),
        "value": _text(record["value"]),
        "headers": [{"key": h["key"], "value": _text(h["value"])} for h in headers],
    }


def _text(data: bytes | None) -> str | dict[str, str] | None:
    """Text as it is; bytes that are none as base64."""
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data or b"").decode()}
