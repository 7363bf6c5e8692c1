"""Copy topics into a cluster from another one, or from Kafka, exactly once.

    spark-submit mirror.py --from main:2181/logbus --zookeeper replica:2181/logbus --topics clicks

It is for clusters whose jobs run with spark-submit: it needs no Spark, and is ``logbus mirror``,
with its options. Run it under whatever starts it again when it ends; what is killed at any point
loses nothing and leaves nothing twice. How that works is told in ``spark_logbus.mirror.round``.
"""

from __future__ import annotations

import sys

from spark_logbus.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["mirror"]
    main()
