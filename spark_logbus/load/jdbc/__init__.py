"""Tables of a relational database as the target of loads: data and offsets in one transaction."""

from spark_logbus.load.jdbc.config import JdbcTable
from spark_logbus.load.jdbc.window import UnknownRowsError

__all__ = ["JdbcTable", "UnknownRowsError"]
