"""Workers that Spark lets go, each kind of those that logbus has to do with, say nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.spark import idle_workers_program
from tests.servers.cluster import Logbus
from tests.servers.spark import PROJECT
from tests.servers.spark_processes import environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

KINDS = {
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.worker",
}


def test_idle_workers_of_a_job_end_without_a_traceback(logbus: Logbus) -> None:
    topic = logbus.topic()
    logbus.produce(topic, ["a", "b", "c"])
    submit = Path(sys.executable).with_name("spark-submit")
    done = subprocess.run(
        [submit, "--master", "local[1]", "--driver-memory", "512m",
         "--conf", "spark.python.unix.domain.socket.enabled=true",
         idle_workers_program.__file__, logbus.zookeeper, topic],
        env=environment() | {"SPARK_CONF_DIR": str(PROJECT / "conf" / "spark")},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "3 records" in done.stdout
    kinds = re.search(r"idle workers of: (.*)", done.stdout)
    assert kinds is not None, done.stdout
    assert set(kinds[1].split()) >= KINDS
    assert "Traceback" not in done.stdout, done.stdout
