"""Options of ``logbus audit`` that do not go together."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from spark_logbus.cli.app import app


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--delta", "/t", "--iceberg", "c.n.t"], "--delta and --iceberg each name"),
        (["--lake-properties", "f"], "no table of a lake is named"),
    ],
)
def test_two_tables_of_a_lake_or_none_are_wrong_usage(options: list[str], named: str) -> None:
    """Tells so before it looks for a cluster, of which there is none."""
    done = CliRunner().invoke(app, ["audit", "clicks", "--zookeeper", "127.0.0.1:1", *options])
    assert done.exit_code == 2
    assert named in " ".join(done.output.replace("\u2502", " ").split())
