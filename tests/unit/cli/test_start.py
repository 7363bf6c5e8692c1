"""The command line starts fast: what a verb does not need is not imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

_HEAVY = ("pyspark", "py4j", "pyarrow", "numpy", "pandas", "kazoo")


def imported(program: str) -> set[str]:
    """The heavy packages that a fresh Python has after ``program``."""
    probe = f"{program}\nimport sys\nprint(*[m for m in {_HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stdout.split())


def test_help_imports_nothing_heavy() -> None:
    assert imported("import spark_logbus.cli") == set()


@pytest.mark.parametrize("verb", ["broker", "up", "dump", "topics", "groups", "produce", "consume"])
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    from spark_logbus.cli.app import app

    with pytest.raises(SystemExit) as ended:
        app([verb, "--help"])
    assert ended.value.code == 0
    assert "Usage:" in capsys.readouterr().out


def test_a_broker_does_without_spark_and_arrow() -> None:
    loaded = imported("import spark_logbus.cli.broker\nfrom spark_logbus.broker import Broker")
    assert loaded <= {"kazoo"}


def test_a_cluster_does_without_spark_and_arrow() -> None:
    assert imported("import spark_logbus.local.cluster") <= {"kazoo"}
