"""Whose group it is, from what can be seen of the driver."""

from __future__ import annotations

import os

import pytest

from spark_logbus.spark.driver_process import application_name, spark_driver

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
