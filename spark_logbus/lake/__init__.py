"""One read over a table and its topic: what loads have brought in, and what the log has since."""

from spark_logbus.lake.union import HistoryAndStream, union_read, union_stream

__all__ = ["HistoryAndStream", "union_read", "union_stream"]
