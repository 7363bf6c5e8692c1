"""What the process of a Spark task carries when logbus has read or written in it."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark_logbus.datasource.columns import ColumnChoice, full_schema
from spark_logbus.datasource.input_partition import RangesPartition
from spark_logbus.model import OffsetRange, TopicPartition
from spark_logbus.sink.writer import LogbusBatchWriter, plan_write
from tests.helpers import without_waiting
from tests.servers.cluster import Logbus
from tests.servers.spark import PROJECT
from tests.servers.spark_processes import WORKER, running

READS = """\
from spark_logbus.datasource.task import read_partition
partition, columns = pickle.load(sys.stdin.buffer)
for task in range(2):
    rows = sum(b.num_rows for b in read_partition(partition, columns, fail_on_data_loss=True))
    frozen.append(gc.get_freeze_count())
"""
WRITES = """\
from pyspark import TaskContext
context = TaskContext._getOrCreate()
writer, batch = pickle.load(sys.stdin.buffer)
for task in range(2):
    context._taskAttemptId = task
    rows = sum(writer.write(iter([batch])).staged.records.values())
    frozen.append(gc.get_freeze_count())
"""

PLANS_AND_READS = """\
import os, pickle, sys
from spark_logbus.datasource.task import read_ranges
from spark_logbus.sink.writer import plan_write
from spark_logbus.spark.worker import shared_cluster
options, schema, partition, columns = pickle.load(sys.stdin.buffer)

def plan_and_read():
    plan_write(options, schema, overwrite=False, streaming=False)
    cluster = shared_cluster(partition.bootstrap)
    batches = read_ranges(partition, cluster, columns, fail_on_data_loss=True)
    return sum(batch.num_rows for batch in batches)

plan_and_read()
child = os.fork()
if not child:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what it has inherited stays open
    sys.exit(5)  # by way of all that is done at an exit
assert os.waitpid(child, 0)[1] == 5 << 8
print(plan_and_read())
"""


def run(task: str, *arguments: Any) -> tuple[int, list[int], int, bool]:
    """Rows, objects frozen after each of two tasks, objects that the collector still walks, and
    whether pandas was imported, in a process of its own."""
    script = (
        f"import gc, pickle, sys\nfrozen = []\n{task}"
        "gc.collect()\n"
        "print(repr((rows, frozen, len(gc.get_objects()), 'pandas' in sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=pickle.dumps(arguments),
        capture_output=True,
        cwd=PROJECT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    rows, frozen, walked, pandas = ast.literal_eval(done.stdout.decode())
    return rows, frozen, walked, pandas


def all_of(logbus: Logbus, topic: str, end: int, *, start: int = 0) -> RangesPartition:
    """An input partition of the topic's first partition."""
    described = logbus.admin.describe([topic], ends=False)[topic]
    ranges = (OffsetRange(TopicPartition(topic, 0), start, end),)
    return RangesPartition(logbus.cluster.bootstrap, ranges, {topic: described.topic_id})


def test_a_read_brings_no_pandas_and_leaves_little_to_collect(logbus: Logbus) -> None:
    assert importlib.util.find_spec("pandas"), "it is not there to be imported"
    topic = logbus.topic()
    logbus.produce(topic, [f"{n}" for n in range(50)], key="k", headers=[("h", b"1")])
    logbus.produce(topic, [None, "without key and headers"])
    partition = all_of(logbus, topic, 52, start=1)
    columns = ColumnChoice(full_schema(include_headers=True))
    rows, frozen, walked, pandas = run(READS, partition, columns)
    assert (rows, pandas) == (51, False)
    assert frozen[0] > 10_000
    assert frozen[1] <= frozen[0]  # once
    assert walked < 2_000


def test_sparks_workers_import_the_installed_pyspark(spark: SparkSession) -> None:
    """Imports the compiled PySpark, not the one in the zip file that Spark puts first on the
    path."""

    def where(_: int) -> tuple[str, str]:
        import os

        import pyspark

        return pyspark.__file__, os.environ["PYTHONPATH"]

    [(file, path)] = spark.sparkContext.parallelize([0], 1).map(where).collect()
    assert file == pyspark.__file__
    assert "pyspark.zip" in path


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="Linux has the option")
def test_a_worker_keeps_spark_waiting_no_longer_after_a_task(logbus: Logbus) -> None:
    """Its socket sends at once, and a thread acknowledges what Spark sends it next."""
    topic = logbus.topic()
    logbus.produce(topic, ["a"])
    columns = ColumnChoice(full_schema(include_headers=False))
    script = f"""\
import os, pickle, socket, sys, threading
own = socket.create_connection(("127.0.0.1", int(os.environ["PYTHON_WORKER_FACTORY_PORT"])))
frozen = []
import gc
{READS}
at_once = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
print([at_once, "logbus-quick-ack" in [one.name for one in threading.enumerate()]])
"""
    with socket.create_server(("127.0.0.1", 0)) as jvm:
        done = subprocess.run(
            [sys.executable, "-c", script],
            input=pickle.dumps((all_of(logbus, topic, 1), columns)),
            env={**os.environ, "PYTHON_WORKER_FACTORY_PORT": str(jvm.getsockname()[1])},
            capture_output=True,
            cwd=PROJECT,
            timeout=60,
            check=False,
        )
    assert (done.stdout.decode(), done.stderr.decode()) == ("[1, True]\n", "")


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="Linux has the option")
def test_sparks_own_workers_acknowledge_after_a_task(spark: SparkSession, logbus: Logbus) -> None:
    """The socket of a worker that Spark's daemon has forked is found, and waited for by epoll."""
    topic = logbus.topic()
    logbus.produce(topic, ["a"])
    reader = spark.read.format("logbus").option("zookeeper", logbus.zookeeper)
    assert [row.value for row in reader.load(topic).collect()] == [b"a"]
    workers = running(os.getpid(), WORKER)
    assert [pid for pid in workers if "anon_inode:[eventpoll]" in open_files(pid)] != []


def open_files(pid: int) -> list[str]:
    with contextlib.suppress(OSError):  # it may end meanwhile
        return [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    return []


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="Linux has the option")
@pytest.mark.parametrize("lacking", ["os.dup", "select.epoll", "threading.Thread.start"])
def test_no_task_fails_for_want_of_descriptors_or_threads(logbus: Logbus, lacking: str) -> None:
    """Takes them away from what the socket's options need, and from nothing else."""
    topic = logbus.topic()
    logbus.produce(topic, ["a"])
    columns = ColumnChoice(full_schema(include_headers=False))
    error = "RuntimeError" if "Thread" in lacking else "OSError(24, 'Too many open files')"
    module = lacking.split(".")[0]
    lacks = f"""\
import os, socket, unittest.mock
from spark_logbus.spark import worker_socket
server = socket.create_server(("127.0.0.1", 0))
own = socket.create_connection(server.getsockname())
os.environ["PYTHON_WORKER_FACTORY_PORT"] = str(server.getsockname()[1])
assert worker_socket.find_spark_socket(server.getsockname()[1]) == own.fileno()
import {module}
unittest.mock.patch.object({lacking.rpartition(".")[0]}, {lacking.rpartition(".")[2]!r},
                           side_effect={error}).start()
"""
    rows, *_ = run(lacks + READS, all_of(logbus, topic, 1), columns)
    assert rows == 1


def test_a_write_brings_no_pandas_and_leaves_little_to_collect(logbus: Logbus) -> None:
    topic = logbus.topic(partitions=3)
    schema = StructType().add("key", "binary").add("value", "binary")
    options = {"zookeeper": logbus.zookeeper, "topic": topic}
    writer = LogbusBatchWriter(plan_write(options, schema, overwrite=False, streaming=False))
    columns = {"key": [b"a", b"b", None], "value": [b"1", None, b"3"]}
    batch = pa.RecordBatch.from_pydict(
        columns, schema=pa.schema([("key", pa.binary()), ("value", pa.binary())])
    )
    rows, frozen, walked, pandas = run(WRITES, writer, batch)
    assert (rows, pandas) == (3, False)
    assert frozen[0] > 10_000
    assert frozen[1] <= frozen[0]
    assert walked < 2_000
    assert sum(logbus.ends(topic).values()) == 0  # nobody has committed


def test_a_write_by_topic_and_partition_leaves_little_to_collect(logbus: Logbus) -> None:
    topic = logbus.topic(partitions=2)
    schema = StructType().add("topic", "string").add("partition", "integer").add("value", "binary")
    options = {"zookeeper": logbus.zookeeper}
    writer = LogbusBatchWriter(plan_write(options, schema, overwrite=False, streaming=False))
    arrow = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("value", pa.binary())])
    columns = {"topic": [topic, topic], "partition": [1, None], "value": [b"1", b"2"]}
    rows, _, walked, _ = run(WRITES, writer, pa.RecordBatch.from_pydict(columns, schema=arrow))
    assert rows == 2
    assert walked < 2_000  # though Arrow's group_by imports pandas


def test_a_process_that_ends_in_order_leaves_no_socket_open(logbus: Logbus) -> None:
    """Ends a process as one of Spark's that is not forked, or a driver in Python, ends. A forked
    one that ends does no harm to what its parent has open."""
    name = logbus.topic()
    logbus.produce(name, ["a", "b"])
    options = {"zookeeper": logbus.zookeeper, "topic": name}
    schema = StructType().add("value", "binary")
    columns = ColumnChoice(full_schema(include_headers=False))
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c", PLANS_AND_READS],
        input=pickle.dumps((options, schema, all_of(logbus, name, 2), columns)),
        capture_output=True,
        cwd=PROJECT,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, b"2\n")
    assert without_waiting(ended.stderr.decode()) == ""
