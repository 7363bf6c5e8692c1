"""The cluster of a query: that of the options, else what the environment says."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_logbus.errors import InvalidOptionError
from spark_logbus.spark.options import SparkOptions, cluster_address


@pytest.fixture(autouse=True)
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "profiles.toml"
    file.write_text('[prod]\nzookeeper = "zk:2181"\n')
    file.chmod(0o600)
    monkeypatch.setenv("LOGBUS_PROFILES", str(file))
    monkeypatch.setenv("LOGBUS_ZOOKEEPER", "near:2181/logbus")


def test_the_environments_profile_needs_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cluster_address(SparkOptions({})) == "near:2181/logbus"
    monkeypatch.setenv("LOGBUS_PROFILE", "prod")
    assert cluster_address(SparkOptions({})) == "profile:prod"
    assert cluster_address(SparkOptions({"zookeeper": "far:2181/x"})) == "far:2181/x"


def test_the_option_is_a_profile_that_is_there() -> None:
    assert cluster_address(SparkOptions({"Profile": "prod"})) == "profile:prod"
    assert cluster_address(SparkOptions({"zookeeper": "profile:prod"})) == "profile:prod"
    with pytest.raises(InvalidOptionError, match=r"Option profile: There is no profile 'other'"):
        cluster_address(SparkOptions({"profile": "other"}))
    with pytest.raises(InvalidOptionError, match="says where the cluster is too"):
        cluster_address(SparkOptions({"profile": "prod", "zookeeper": "zk:2181"}))
