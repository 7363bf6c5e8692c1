"""A declarative pipeline (``spark-pipelines run``) that reads one topic and writes another."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.servers.cluster import Logbus
from tests.servers.spark import PROJECT

EXAMPLE: Final = PROJECT / "examples" / "pipeline"


class Pipeline:
    """The example, with storage and topics of its own."""

    def __init__(self, logbus: Logbus, directory: Path) -> None:
        self._logbus = logbus
        self._directory = directory / "pipeline"
        self.source, self.target = logbus.topic(partitions=2), logbus.topic(partitions=2)
        shutil.copytree(EXAMPLE, self._directory)
        for path, old, new in (
            ("spark-pipeline.yml", "/tmp/logbus-pipeline", str(directory / "storage")),
            ("transformations/large_sales.py", '"sales-large"', f'"{self.target}"'),
            ("transformations/large_sales.py", 'subscribe="sales"', f'subscribe="{self.source}"'),
        ):
            file = self._directory / path
            text = file.read_text()
            assert old in text
            file.write_text(text.replace(old, new))

    def produce(self, numbers: range) -> None:
        for partition in (0, 1):
            values = [f'{{"id":{n},"amount":{n % 200}.0}}' for n in numbers if n % 2 == partition]
            self._logbus.produce(self.source, values, partition=partition)

    def run(self, *arguments: str) -> str:
        scripts = Path(sys.executable).parent
        environment = {
            **os.environ,
            "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(PROJECT),
            "LOGBUS_ZOOKEEPER": self._logbus.zookeeper,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        done = subprocess.run(
            [str(scripts / "spark-pipelines"), "run", *arguments],
            cwd=self._directory, env=environment, capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def copied(self) -> Counter[str]:
        return Counter(value for part in self._logbus.values(self.target) for value in part)


def wanted(numbers: range) -> Counter[str]:
    return Counter(f'{{"id":{n},"amount":{n % 200}.0}}' for n in numbers if n % 200 >= 100)


@pytest.mark.long
def test_a_pipeline_copies_what_its_topic_holds(logbus: Logbus, tmp_path: Path) -> None:
    pipeline = Pipeline(logbus, tmp_path)
    pipeline.produce(range(1_000))
    pipeline.run()
    assert pipeline.copied() == wanted(range(1_000))


@pytest.mark.slow
def test_a_pipeline_goes_on_where_its_last_run_ended(logbus: Logbus, tmp_path: Path) -> None:
    pipeline = Pipeline(logbus, tmp_path)
    pipeline.produce(range(1_000))
    pipeline.run()
    assert pipeline.copied() == wanted(range(1_000))
    pipeline.produce(range(1_000, 1_500))
    pipeline.run()
    assert pipeline.copied() == wanted(range(1_500))
