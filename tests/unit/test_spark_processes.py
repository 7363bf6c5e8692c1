"""Programs that Spark takes for Python, such as ``jupyter`` in ``PYSPARK_DRIVER_PYTHON``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pyspark
import pytest

from spark_logbus.spark_processes import python_command

PYTHON: Final = "/venv/bin/python"
JUPYTER: Final = Path(sys.executable).with_name("jupyter")
VERSION: Final = "import sys; print('%d.%d' % sys.version_info[:2])"


@pytest.mark.parametrize(
    "rest",
    [
        ["-m", "pyspark.daemon", "pyspark.sql.worker.lookup_data_sources"],
        ["-m", "pyspark.sql.streaming.python_streaming_source_runner"],
        ["-c", VERSION],
    ],
)
def test_what_spark_asks_of_a_program_is_asked_of_python(rest: list[str]) -> None:
    assert python_command(["/venv/bin/jupyter", *rest], PYTHON) == [PYTHON, *rest]
    assert python_command(["/venv/bin/jupyter", *rest], "") == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["-m", "pyspark.daemon", "pyspark.worker"],  # Python itself, as it runs a module
        ["-m", "-m", "pyspark.daemon"],
        ["-c", "-c", VERSION],
        ["job.py", "-m", "model.pkl"],
        ["job.py", "-c", "conf.toml"],
        ["job.py", "-c", "import sys"],
        ["job.py", "-c"],
        ["job.py", "--mode", "-m", "pyspark.daemon"],
        ["/jobs/train.py", "-m", "pyspark.ml.regression"],
        ["/jobs/run.py", "-c", VERSION],
        ["jupyter", "lab"],
        [""],
        [],
    ],
)
def test_all_other_programs_run_as_they_are(arguments: list[str]) -> None:
    assert python_command(arguments, PYTHON) == []


def test_jupyter_tells_spark_its_pythons_version() -> None:
    """The real program, with Spark's path, in an environment in which logbus is installed."""
    archive = Path(pyspark.__path__[0]) / "python" / "lib" / "pyspark.zip"
    done = subprocess.run(
        [JUPYTER, "-c", VERSION],
        env={**os.environ, "PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    own = f"{sys.version_info.major}.{sys.version_info.minor}\n"
    assert (done.stdout, done.stderr) == (own, "")
