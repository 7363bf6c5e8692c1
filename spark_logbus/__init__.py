"""logbus: a segment-file log broker and its Spark connector.

Importing this package imports neither pyspark nor pyarrow nor kazoo; each subpackage
brings what it needs.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
