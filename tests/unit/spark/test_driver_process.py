"""Whose group it is, from what can be seen of the driver."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from types import ModuleType

import pytest

from spark_logbus.spark.driver_process import application_name, plans_a_stream, spark_driver

PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"

SUBMIT = ["java", "-cp", "/jars/*", "org.apache.spark.deploy.SparkSubmit"]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ([*SUBMIT, "--conf", "spark.app.name=nightly load", "pyspark-shell"], "nightly load"),
        ([*SUBMIT, "--name", "nightly", "job.py", ""], "nightly"),
        ([*SUBMIT, "--conf", "spark.ui.enabled=false", "job.py"], None),
        (["java", "--name"], None),
        ([], None),
    ],
)
def test_the_name_of_the_application(arguments: list[str], name: str | None) -> None:
    assert application_name(arguments) == name


def test_without_a_driver_it_is_this_process() -> None:
    assert spark_driver() == (os.getpid(), None)


@pytest.mark.parametrize(("program", "plans"), [(PLANNER, True), ("pyspark.daemon", False)])
def test_the_process_that_plans_a_stream(
    program: str, plans: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = ModuleType("__main__")
    main.__spec__ = find_spec(program)
    assert main.__spec__ is not None
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert plans_a_stream() is plans
