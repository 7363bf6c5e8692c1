"""The modules that a fresh interpreter loads: a broker starts without Arrow and Spark, a stream
without what it does not use yet."""

from __future__ import annotations

import ast
import collections
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("pyarrow", "pyspark", "py4j", "kazoo", "pandas", "numpy", "fastavro")


@pytest.mark.parametrize(
    "modules",
    [
        "spark_logbus",
        "spark_logbus.errors",
        "spark_logbus.model",
        "spark_logbus.record",
        "spark_logbus.protocol",
        "spark_logbus.record, spark_logbus.protocol",
        "spark_logbus.log",
    ],
)
def test_importing_brings_nothing_heavy(modules: str) -> None:
    code = f"import sys, {modules}; print(*[m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_broker_brings_kazoo_but_neither_arrow_nor_spark() -> None:
    code = f"import sys, spark_logbus.broker; print(*[m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() in ([], ["kazoo"])


def test_the_broker_brings_only_zookeepers_client() -> None:
    code = f"import sys, spark_logbus.broker; print(*[m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "kazoo"


def test_the_command_that_runs_a_broker_brings_no_more(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from spark_logbus.cli import main\n"
        f"sys.argv = ['logbus', 'broker', '--config', {str(tmp_path / 'missing.toml')!r}]\n"
        "try:\n    main()\n"
        "except SystemExit:\n    pass\n"
        "assert 'spark_logbus.broker' in sys.modules\n"
        f"print(*[m for m in {HEAVY} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "kazoo"


def test_planning_a_stream_starts_with_what_it_uses_at_once() -> None:
    # A stream waits for these imports each time that it is started.
    later = (
        *(
            "kazoo",
            "crc32c",
            "pandas",
            "pyarrow.compute",
            "pyarrow.ipc",
            "spark_logbus.record.rows.arrow",
        ),
        *(
            "spark_logbus.client.producer",
            "spark_logbus.client.consumer",
            "spark_logbus.client.fetch",
        ),
        *(
            "spark_logbus.datasource.batch_reader",
            "spark_logbus.datasource.task",
            "spark_logbus.sink",
        ),
        *(
            "spark_logbus.coordination",
            "spark_logbus.http",
            "spark_logbus.cli",
            "spark_logbus.local",
            "spark_logbus.schemas",
        ),
    )
    code = (
        "import sys\n"
        "import pyspark.sql.streaming.python_streaming_source_runner\n"
        "before = set(sys.modules)\n"
        "from pyspark_logbus import DefaultSource\n"
        "source = DefaultSource({'subscribe': 'a', 'zookeeper': 'localhost:2181', 'group': 'g'})\n"
        "from spark_logbus.datasource.columns import full_schema\n"  # Spark hands one over
        "for _ in range(2):\n    source.streamReader(full_schema(include_headers=False))\n"
        "assert 'spark_logbus.datasource.stream_driver' in sys.modules\n"
        f"print(*[m for m in {later} if m in sys.modules and m not in before])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("record_batches", [1, 40])  # decoded alone, and together
def test_reading_and_writing_bytes_needs_no_python_function_of_arrows(record_batches: int) -> None:
    # Each of Spark's workers would pay for them with its first task.
    code = (
        "import sys\n"
        "from array import array\n"
        "from spark_logbus.client.fetch.batches import received_run\n"
        "from spark_logbus.client.fetch.columns import take_columns\n"
        "from spark_logbus.datasource.columns import ColumnChoice, full_schema\n"
        "from spark_logbus.datasource.rows import RowAssembler\n"
        "from spark_logbus.model import TopicPartition\n"
        "from spark_logbus.record import stamp\n"
        "from spark_logbus.record.rows.arrow import canonical, encode, encode_rows\n"
        "tp, data = TopicPartition('t', 0), bytearray()\n"
        f"for number in range({record_batches}):\n"
        "    one = encode_rows(array('q', [number] * 2), [b'k', b'l'], [b'v', b'w'])\n"
        "    stamp(one, base_offset=2 * number, leader_epoch=0, append_time_us=0)\n"
        "    data += one\n"
        "run = received_run(tp, memoryview(data), position=0)\n"
        "names = ('timestamp', 'key', 'value')\n"
        "limits = {'end': 1_000, 'enough_rows': 1_000, 'enough_bytes': 1_000_000}\n"
        "taken, found = take_columns(tp, run, names, start=0, **limits)\n"
        "rows = RowAssembler(ColumnChoice(full_schema(include_headers=False))).build([found])\n"
        "encode(canonical(rows.select(['key', 'value']), now_us=0))\n"
        "late = ('pandas', 'pyarrow.compute')\n"
        "print(rows.num_rows, *[module for module in late if module in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(2 * record_batches)]


@pytest.mark.parametrize(
    "package", ["spark_logbus.client", "spark_logbus.record", "spark_logbus.zookeeper"]
)
def test_a_package_has_the_names_that_it_lists(package: str) -> None:
    module = importlib.import_module(package)
    assert all(getattr(module, name) is not None for name in module.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = module.Nothing


def test_no_two_errors_have_one_name() -> None:
    """Looks at what users may catch: classes of errors that begin with no underscore."""
    root = Path(__file__).parents[2]
    names = collections.Counter(
        node.name
        for package in ("avro_columns", "spark_logbus")
        for path in (root / package).rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name.endswith("Error") and node.name[0] != "_"
    )
    assert [name for name, count in names.items() if count > 1] == []
    assert len(names) > 80
