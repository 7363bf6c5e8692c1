"""Interceptors see the record batches of a producer on their way and their fate."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from spark_logbus.client.producer.acknowledgements import Acknowledgement, AppendedRange
from spark_logbus.errors import InvalidRequestError, LogbusError
from spark_logbus.record.rows.arrow import canonical

logger = logging.getLogger(__name__)


class AsRecords(Protocol):
    """Makes records of columns, as ``canonical`` does."""

    def __call__(self, data: pa.RecordBatch, /, *, now_us: int) -> pa.RecordBatch: ...


class ProducerInterceptor:
    """Sees each record batch before it is encoded, when it goes, and when its fate is known.

    Whole record batches, as Arrow columns (``value``, ``timestamp`` in µs UTC, and ``key`` and
    ``headers`` where there are any), so that a million records cost some hundred calls. In a topic
    with a schema ``value`` is what the topic holds: a struct of columns, or datums. Override what
    is wanted. The methods run in the producer's threads or in a caller's, hold them up, and must
    be thread-safe.
    """

    def before_append(self, topic: str, records: pa.RecordBatch) -> pa.RecordBatch:
        """The records to append: these, or as many others in the same order.

        The partition was chosen by then. An error fails the record batch, or ``send_arrow``.
        """
        del topic
        return records

    def under_way(self, topic: str, records: pa.RecordBatch) -> None:
        """The records are about to be sent: ``after_append`` follows, once, with this very value.

        They are what ``before_append`` returned, or a part of it. An error is logged.
        """

    def after_append(
        self,
        topic: str,
        records: pa.RecordBatch,
        appended: AppendedRange | None,
        error: LogbusError | None,
    ) -> None:
        """Hears what became of records that were under way: their place, or else what failed.

        Records that failed by a timeout or a lost connection may be there all the same. An error
        is logged, and nothing else.
        """

    def close(self) -> None:
        """The producer has ended: the fate of all its records is known. An error is logged."""


class Interceptors:
    """The interceptors of one producer, in order; the last ones see what those before return."""

    def __init__(self, interceptors: Sequence[ProducerInterceptor]) -> None:
        for each in interceptors:
            if not isinstance(each, ProducerInterceptor):
                raise InvalidRequestError(
                    "interceptors must be instances of ProducerInterceptor, got "
                    f"{type(each).__name__}."
                )
        self._interceptors = tuple(interceptors)

    def __bool__(self) -> bool:
        return bool(self._interceptors)

    def before(
        self, topic: str, records: pa.RecordBatch, as_records: AsRecords = canonical
    ) -> pa.RecordBatch:
        """The records to append. InvalidRequestError names an interceptor that fails."""
        for each in self._interceptors:
            name = type(each).__name__
            try:
                seen = each.before_append(topic, records)
            except Exception as error:
                raise InvalidRequestError(
                    f"The interceptor {name} failed for records of topic {topic}: {error!r}."
                ) from error
            if seen is records:
                continue
            if not isinstance(seen, pa.RecordBatch) or seen.num_rows != records.num_rows:
                raise InvalidRequestError(
                    f"The interceptor {name} must return a pyarrow RecordBatch of "
                    f"{records.num_rows} rows, as it was given."
                )
            # A timestamp of null, which would be filled in with this, was filled in before.
            records = as_records(seen, now_us=0)
        return records

    def watch(self, acknowledgement: Acknowledgement, topic: str, records: pa.RecordBatch) -> None:
        """Tell the interceptors that the records are on their way, and once their fate is known."""
        for each in self._interceptors:
            try:
                each.under_way(topic, records)
            except Exception:
                logger.exception("The interceptor %s failed.", type(each).__name__)
            acknowledgement.when_done(_Told(each, acknowledgement, topic, records))

    def close(self) -> None:
        """Tell the interceptors that there is no more to come."""
        for each in self._interceptors:
            try:
                each.close()
            except Exception:
                # Not the producer's fault, whose records are where they are.
                logger.exception("The interceptor %s failed to close.", type(each).__name__)


class _Told:
    """A callback, without the reference to all others that a closure in a loop would have."""

    __slots__ = ("_acknowledgement", "_interceptor", "_records", "_topic")

    def __init__(
        self,
        interceptor: ProducerInterceptor,
        acknowledgement: Acknowledgement,
        topic: str,
        records: pa.RecordBatch,
    ) -> None:
        self._interceptor = interceptor
        self._acknowledgement = acknowledgement
        self._topic = topic
        self._records = records

    def __call__(self) -> None:
        error = self._acknowledgement.failure(0)
        appended = None if error is not None else self._acknowledgement.wait(0)
        self._interceptor.after_append(self._topic, self._records, appended, error)
