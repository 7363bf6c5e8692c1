"""Bytes of one record batch; no files, no sockets.

This package's top level is what a broker needs: headers, checksums, stamping. What turns
payloads into Arrow and back is ``spark_logbus.record.rows.arrow``, which brokers never import.
"""

from typing import TYPE_CHECKING

from spark_logbus.lazy_names import lazy_names

if TYPE_CHECKING:
    from spark_logbus.record.format import HEADER_SIZE, LENGTH_FIELD_END, MAGIC_V1
    from spark_logbus.record.header import (
        RecordBatchHeader,
        checksum,
        for_another_log,
        parse_header,
        peek_size,
        stamp,
        stamp_producer,
        stamps_of,
        verify,
        verify_against,
    )
    from spark_logbus.record.walk import read_headers, split
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "format": "HEADER_SIZE LENGTH_FIELD_END MAGIC_V1",
            "header": (
                "RecordBatchHeader checksum for_another_log parse_header peek_size stamp "
                "stamp_producer stamps_of verify verify_against"
            ),
            "walk": "read_headers split",
        },
    )

__all__ = [
    "HEADER_SIZE",
    "LENGTH_FIELD_END",
    "MAGIC_V1",
    "RecordBatchHeader",
    "checksum",
    "for_another_log",
    "parse_header",
    "peek_size",
    "read_headers",
    "split",
    "stamp",
    "stamp_producer",
    "stamps_of",
    "verify",
    "verify_against",
]
