"""Fetches of record batches from partitions."""

from __future__ import annotations

from spark_logbus.protocol.messages.api import Api, Message, Operation, declare, of_partitions
from spark_logbus.protocol.messages.error import ErrorInfo

__all__ = [
    "ColumnChoice",
    "FetchPartition",
    "FetchRequest",
    "FetchResponse",
    "FetchResult",
]


class ColumnChoice(Message):
    """The columns that are wanted of record batches of layout 1: those of the record by name
    (``timestamp``, ``key``, ``headers``), and for each schema id the places of fields of the value;
    None: all of them.

    Record batches of fewer than ``min_bytes``, and those of other schemas, come whole all the same.
    What is left out is cut out of the record batch, which is otherwise as it was.
    """

    columns: list[str]
    fields: dict[int, list[int] | None]
    min_bytes: int = 0


class FetchPartition(Message):
    """Records from ``offset`` on; no record batch that starts at or after ``end``, if given.

    ``topic_id``, if given, is of the topic that is meant, and of no later one of its name.
    ``columns`` None: all of each record batch.
    """

    topic: str
    partition: int
    offset: int
    max_bytes: int
    end: int | None = None
    topic_id: str | None = None
    columns: ColumnChoice | None = None


class FetchRequest(Message):
    """Waits up to ``max_wait_ms`` until ``min_bytes`` are there; at most ``max_bytes`` come back,
    except that the first record batch comes whole however large it is.

    ``max_bytes_by_descriptor``: over a UNIX socket and for one partition, the file that holds the
    records may come in place of the payload, for so many bytes of it; 0: it may not.
    ``replica``: a broker that follows the partitions and is in sync may answer for their leaders.
    """

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partitions: list[FetchPartition]
    max_bytes_by_descriptor: int = 0
    replica: bool = False


class FetchResult(Message):
    """``length`` bytes of the payload: record batches, the first of which holds the offset asked
    for (it may begin before it), the last of which may be cut off.

    ``chosen``: those that the request's ``columns`` are of have no other columns. ``lost`` as in
    the metadata: what lies between an offset and the high watermark is no measure without it.
    """

    topic: str
    partition: int
    length: int = 0
    log_start_offset: int = -1
    high_watermark: int = -1
    error: ErrorInfo | None = None
    chosen: bool = False
    lost: list[tuple[int, int]] = []


class FetchResponse(Message):
    """``position`` -1: the payload follows. Otherwise it does not: it is what the file whose
    descriptor came with this frame (``SCM_RIGHTS``) holds from ``position`` on, as many bytes as
    the only result says."""

    results: list[FetchResult]
    position: int = -1


declare(
    Api.FETCH, FetchRequest, FetchResponse,
    needs=of_partitions(Operation.READ),
    entries=lambda request: request.partitions,
)  # fmt: skip
