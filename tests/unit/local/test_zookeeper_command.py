"""Finding Spark's jars, and the files written for a ZooKeeper server."""

from __future__ import annotations

import importlib.util
import os
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from spark_logbus.errors import EmbeddedServerError
from spark_logbus.local.zookeeper_command import server_command

NEEDED = (
    "zookeeper-3.9.5.jar",
    "zookeeper-jute-3.9.5.jar",
    "slf4j-api-2.0.17.jar",
    "log4j-api-2.25.4.jar",
    "log4j-core-2.25.4.jar",
    "log4j-slf4j2-impl-2.25.4.jar",
    "metrics-core-4.2.37.jar",
    "snappy-java-1.1.10.8.jar",
)
OTHERS = ("netty-all-4.2.13.Final.jar", "log4j-1.2-api-2.25.4.jar", "spark-core_2.13-4.3.0.jar")


@pytest.fixture
def spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Spark installation of empty jars, named by SPARK_HOME; and no pyspark."""
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    for name in (*NEEDED, *OTHERS):
        (jars / name).touch()
    monkeypatch.setenv("SPARK_HOME", str(jars.parent))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    return jars.parent


def class_path(directory: Path) -> list[str]:
    command = server_command(directory, host="127.0.0.1", port=2181, heap_mb=64)
    return command[command.index("-cp") + 1].split(os.pathsep)


def test_only_the_needed_jars(spark_home: Path, tmp_path: Path) -> None:
    assert class_path(tmp_path) == [str(spark_home / "jars" / name) for name in NEEDED]


def test_all_jars_of_a_spark_that_names_them_differently(spark_home: Path, tmp_path: Path) -> None:
    (spark_home / "jars" / "metrics-core-4.2.37.jar").unlink()
    assert class_path(tmp_path) == [str(spark_home / "jars" / "*")]


def test_spark_home_without_zookeeper_yields_to_pyspark(
    spark_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other" / "jars").mkdir(parents=True)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "other"))
    spec = ModuleSpec("pyspark", None, is_package=True)
    spec.submodule_search_locations = [str(spark_home)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert class_path(tmp_path)[0] == str(spark_home / "jars" / NEEDED[0])


def test_no_spark_at_all(spark_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME")
    with pytest.raises(EmbeddedServerError, match="install the Python package pyspark"):
        class_path(tmp_path)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("plain", "plain"),
        ("a b", "a b"),
        ("back\\slash", "back\\\\slash"),
        ("zoö", "zo\\u00f6"),
        ("𝄞", "\\ud834\\udd1e"),
    ],
)
def test_data_directory_as_java_reads_it(
    name: str, written: str, spark_home: Path, tmp_path: Path
) -> None:
    directory = tmp_path / name
    directory.mkdir()
    class_path(directory)
    settings = (directory / "zoo.cfg").read_text("ascii").splitlines()
    assert f"dataDir={tmp_path}/{written}/data" in settings
    assert "clientPort=2181" in settings
