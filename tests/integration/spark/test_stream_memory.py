"""The memory of a stream's processes over thousands of small micro-batches.

Micro-batches: ``LOGBUS_MICRO_BATCHES``; ``--log-cli-level=INFO`` tells the samples.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_logbus.client import Producer
from tests.helpers import wait_until
from tests.servers.cluster import Logbus
from tests.servers.hanging import descendants
from tests.servers.spark_processes import PLANNER, WORKER, running

MICRO_BATCHES = int(os.environ.get("LOGBUS_MICRO_BATCHES", "5000"))
SAMPLES = 20
SETTLED = SAMPLES // 4  # caches and pools are filled by then

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + MICRO_BATCHES)]


@dataclass(frozen=True)
class Sample:
    """MiB: resident, and for the JVM what is alive on its heap and in Arrow's buffers too."""

    planner: float
    driver: float
    jvm: float
    jvm_heap: float
    jvm_arrow: float


# What may come on top between a settled sample and the last one. The JVM takes what its heap may
# have; a leak of the rows would come to 50 MiB and more.
ALLOWED = Sample(planner=8, driver=8, jvm=100, jvm_heap=16, jvm_arrow=1)


@pytest.fixture
def checkpoint() -> Iterator[Path]:
    """Directory in memory where there is such a place: a disk would take most of the time."""
    memory = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    yield made
    shutil.rmtree(made)


def test_small_micro_batches_take_no_memory(
    spark: SparkSession, logbus: Logbus, checkpoint: Path
) -> None:
    topic = logbus.topic(partitions=2, segment_bytes="1048576", retention_bytes="4194304")
    source = spark.readStream.format("logbus").options(zookeeper=logbus.zookeeper, subscribe=topic)
    writer = source.load().writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    over = threading.Event()

    def keep_coming() -> None:
        with Producer(logbus.cluster) as producer:
            while not over.wait(0.02):
                for number in range(20):
                    producer.send(topic, bytes(200), key=b"key", partition=number % 2)
                producer.flush()

    samples: list[Sample] = []
    with ThreadPoolExecutor() as pool:
        producing = pool.submit(keep_coming)
        query = writer.start()
        try:
            for number in range(1, SAMPLES + 1):
                wait_for(query, MICRO_BATCHES * number // SAMPLES)
                samples.append(sample(spark))
                logger.info("After %d micro-batches: %s", processed(query), samples[-1])
            assert not workers(spark), "tasks have read, too"
        finally:
            over.set()
            query.stop()
        producing.result(60)
    for kind in fields(Sample):
        settled = max(getattr(one, kind.name) for one in samples[1 : SETTLED + 1])
        grown = getattr(samples[-1], kind.name) - settled
        assert grown <= getattr(ALLOWED, kind.name), f"{kind.name} has grown by {grown:.1f} MiB"


def processed(query: StreamingQuery) -> int:
    last = query.lastProgress
    return 0 if last is None else last["batchId"]


def wait_for(query: StreamingQuery, micro_batches: int) -> None:
    def reached() -> bool:
        assert query.isActive, str(query.exception())
        return processed(query) >= micro_batches

    wait_until(reached, deadline_s=MICRO_BATCHES, message=f"{micro_batches} micro-batches")


def sample(spark: SparkSession) -> Sample:
    jvm = spark._jvm
    assert jvm is not None
    gc.collect()
    jvm.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    arrow = jvm.org.apache.spark.sql.util.ArrowUtils.rootAllocator()
    [planner] = running(jvm_pid(spark), PLANNER)
    return Sample(
        planner=resident(planner),
        driver=resident(os.getpid()),
        jvm=resident(jvm_pid(spark)),
        jvm_heap=(runtime.totalMemory() - runtime.freeMemory()) / 2**20,
        jvm_arrow=arrow.getAllocatedMemory() / 2**20,
    )


def jvm_pid(spark: SparkSession) -> int:
    assert spark._jvm is not None
    pid: int = spark._jvm.java.lang.ProcessHandle.current().pid()
    return pid


def resident(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def workers(spark: SparkSession) -> list[int]:
    """Processes of tasks; idle ones end after a minute."""
    return [pid for daemon in running(jvm_pid(spark), WORKER) for pid in descendants(daemon)]
