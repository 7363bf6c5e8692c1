"""The commands of the page on security, as somebody new runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.security.test_secured_up import Shell
from tests.servers.spark import PROJECT

PAGE = PROJECT / "docs" / "security.md"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.M | re.S)


def blocks() -> list[tuple[str, str]]:
    """Returns the language and the text of each block of the first part, in order."""
    text = PAGE.read_text()
    part = text[text.index("## From nothing") : text.index("### On several machines")]
    return BLOCK.findall(part)


@pytest.mark.long
def test_the_page_leads_from_nothing_to_a_secured_job(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    shell = Shell(tmp_path)
    first, *others = blocks()
    init, up = first[1].splitlines()
    run(shell, init)
    [job] = [text for language, text in others if language == "python"]
    (tmp_path / "job.py").write_text(job)
    with shell.up(*up.removeprefix("logbus up").split()):
        output = run(shell, *(text for language, text in others if language == "sh"))
        assert "Logged in as user:admin" in output
        assert re.search(r"anna\|\s*hello", output)
        refused = shell.run("--profile", "etl", "topics", "delete", "events", "--yes", code=1)
        assert "user:etl may not delete the topic events" in refused
    secrets = [
        (tmp_path / name).read_text().strip()
        for name in ("etl.password", "secured/admin.password", "secured/zookeeper.password")
    ]
    assert not [each for each in secrets if each in output]


def run(shell: Shell, *texts: str) -> str:
    """Runs blocks of a page in one shell; fails with the first command that does."""
    environment = {
        **shell.environment,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(texts)], cwd=shell.directory, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5_000:]
    return done.stdout
