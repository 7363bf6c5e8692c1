"""The command line starts fast: what a verb does not need is not imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from spark_logbus.cli.app import VERBS, app, loaded

_HEAVY = ("pyspark", "py4j", "pyarrow", "numpy", "pandas", "kazoo")


def imported(program: str) -> set[str]:
    """The heavy packages that a fresh Python has after ``program``."""
    probe = f"{program}\nimport sys\nprint(*[m for m in {_HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stdout.split())


def test_help_imports_no_verb_and_nothing_heavy() -> None:
    program = "import sys\nfrom spark_logbus.cli.app import app\n"
    program += "try: app(['--help'])\nexcept SystemExit: pass\n"
    shown = subprocess.run(
        [sys.executable, "-c", program + "print(*sys.modules, file=sys.stderr)"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    modules = set(shown.stderr.split())
    assert not modules & {*_HEAVY, "rich", "spark_logbus.client"}
    of_verbs = {f"spark_logbus.cli.{verb.room}.{name}" for name, verb in VERBS.items()}
    assert not of_verbs & modules
    assert all(verb.help.split()[0] in shown.stdout for verb in VERBS.values())


def verbs() -> list[list[str]]:
    """Lists all verbs, those of groups behind the group's name."""
    found = []
    for name in VERBS:
        command = loaded(name)
        inner = list(getattr(command, "commands", []))
        found += [[name, each] for each in inner] or [[name]]
    return found


@pytest.mark.parametrize("words", verbs(), ids=" ".join)
def test_every_verb_has_help_with_an_example(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        app([*words, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "Usage:" in shown
    assert f"Example:\n    logbus {' '.join(words)}" in shown


def test_the_list_of_verbs_says_what_their_own_help_says() -> None:
    for name, verb in VERBS.items():
        own = loaded(name).help
        assert " ".join(own.split()).startswith(verb.help[:12])


def test_a_verb_that_asks_for_metadata_imports_no_arrow() -> None:
    program = "import spark_logbus.cli.admin.topics\nfrom spark_logbus.client import Admin, Cluster"
    assert imported(program) <= {"kazoo"}


def test_a_broker_does_without_spark_and_arrow() -> None:
    loaded = imported(
        "import spark_logbus.cli.server.broker\nfrom spark_logbus.broker import Broker"
    )
    assert loaded <= {"kazoo"}


def test_a_cluster_does_without_spark_and_arrow() -> None:
    assert imported("import spark_logbus.local.cluster") <= {"kazoo"}
