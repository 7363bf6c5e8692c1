"""What a fresh interpreter loads: a broker must start without Arrow and Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("pyarrow", "pyspark", "py4j", "kazoo", "pandas", "numpy")


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
