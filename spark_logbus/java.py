"""The Java that Spark and ZooKeeper run on; ``python -m spark_logbus.java`` prints its home."""

import sys

from spark_logbus.local.java import ensure_java_home, java_home, main

__all__ = ["ensure_java_home", "java_home"]

if __name__ == "__main__":
    sys.exit(main())
