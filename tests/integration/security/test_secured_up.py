"""Two commands, and a cluster on this machine is secured."""

from __future__ import annotations

import os
import signal
import ssl
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers import wait_until

LOGBUS = [sys.executable, "-m", "spark_logbus.cli"]


@dataclass
class Shell:
    """A shell of somebody who has nothing but logbus, in a directory of its own."""

    directory: Path

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LOGBUS_")}
        return {**kept, "HOME": str(self.directory / "home")}

    def run(self, *arguments: str, given: str = "", code: int = 0) -> str:
        done = subprocess.run(
            [*LOGBUS, *arguments], cwd=self.directory, env=self.environment, input=given,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    @contextmanager
    def up(self, *arguments: str) -> Iterator[str]:
        """Runs ``logbus up``; gives what it prints once all is there."""
        output = self.directory / "up.out"
        with output.open("wb") as sink:
            process = subprocess.Popen(
                [*LOGBUS, "up", *arguments], cwd=self.directory, env=self.environment,
                stdout=sink, stderr=sink,
            )  # fmt: skip
        try:
            wait_until(
                lambda: process.poll() is not None or "Ctrl-C stops" in output.read_text(),
                deadline_s=120,
            )
            assert process.poll() is None, output.read_text()
            yield output.read_text()
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    (tmp_path / "home").mkdir()
    return Shell(tmp_path)


def test_two_commands_secure_a_cluster(shell: Shell) -> None:
    shell.run("security", "init", "secured")
    with shell.up("--security", "secured") as shown:
        assert "export LOGBUS_PROFILE=secured\n" in shown
        # Others on this machine would read the keys of tokens in the files of ZooKeeper.
        assert stat.S_IMODE((shell.directory / "logbus-data" / "zookeeper").stat().st_mode) == 0o700
        as_admin = ("--profile", "secured")
        assert "Logged in as user:admin" in shell.run("profiles", "check", "secured")
        shell.run(*as_admin, "topics", "create", "events")
        port = (shell.directory / "logbus-data/broker-1/data/metrics.port").read_text().strip()
        context = ssl.create_default_context(cafile=shell.directory / "secured" / "ca.pem")
        with pytest.raises(urllib.error.HTTPError, match="401"):  # they name topics
            urllib.request.urlopen(f"https://127.0.0.1:{port}/metrics", context=context)
        shell.run(*as_admin, "produce", "events", given="a\nb\n")
        assert "a\nb" in shell.run(*as_admin, "consume", "events", "-n", "2")
        assert shell.run(*as_admin, "users", "list").split() == ["USER", "admin"]
        (shell.directory / "anna").write_text("a password\n")
        for name in ("anna", "bert"):
            shell.run(*as_admin, "users", "add", name, "--password-file", "anna")
        shell.run(*as_admin, "acls", "add", "user:anna", "read,write", "topic", "events")
        shell.run("profiles", "add", "anna", "--like", "secured", "--user", "anna",
                  "--password-file", "anna")  # fmt: skip
        shell.run(*as_admin, "topics", "create", "secret")
        for command in (("consume", "secret"), ("topics", "describe", "secret")):
            said = shell.run("--profile", "anna", *command, code=1)
            assert "hidden from who has no right on it" in said
        shown = shell.run(*as_admin, "acls", "list", "user:nobody")
        assert shown == "There are no rules about user:nobody.\n"
        assert "2 rules about user:anna" in shell.run(*as_admin, "users", "remove", "anna")
        assert "rule" not in shell.run(*as_admin, "users", "remove", "bert")
        profiles = (shell.directory / "secured" / "profiles.toml").read_text()
        zookeeper = profiles.split('zookeeper = "')[1].split('"')[0]
        nobody = shell.run("-v", "topics", "list", "-z", zookeeper, code=1)
        assert "events" not in nobody
        # What stands in ZooKeeper is the brokers' own: nobody adds a rule or a user to it.
        nobody = shell.run("users", "list", "-z", zookeeper, code=1)
        assert "admin" not in nobody
    # The data is not served without what secures it, though nobody says so again.
    with shell.up() as shown:
        assert "export LOGBUS_PROFILE=secured\n" in shown
        assert "events" in shell.run(*as_admin, "topics", "list")
    shell.run("security", "init", "other", "--zookeeper", "127.0.0.1:2999/logbus")
    assert "is secured by" in shell.run("up", "--security", "other", code=1)


@pytest.mark.long
def test_a_cluster_with_data_is_secured(shell: Shell) -> None:
    with shell.up() as shown:
        address = next(word for word in shown.split() if word.endswith("/logbus"))
        shell.run("topics", "create", "kept", "-z", address)
        shell.run("produce", "kept", "-z", address, given="a\n")
    shell.run("security", "init", "secured")
    with shell.up("--security", "secured"):
        assert "a" in shell.run("--profile", "secured", "consume", "kept", "-n", "1").split()
        profiles = (shell.directory / "secured" / "profiles.toml").read_text()
        zookeeper = profiles.split('zookeeper = "')[1].split('"')[0]
        assert "kept" not in shell.run("topics", "list", "-z", zookeeper, code=1)
        assert "does not let a session" in shell.run("groups", "list", "-z", zookeeper, code=1)


@pytest.mark.long
def test_a_first_user_who_was_removed_stays_so(shell: Shell) -> None:
    shell.run("security", "init", "secured")
    password = ("--password-file", "secured/admin.password")
    with shell.up("--security", "secured"):
        as_admin = ("--profile", "secured")
        shell.run(*as_admin, "users", "add", "other", *password)
        shell.run(*as_admin, "acls", "add", "user:other", "describe", "cluster", "*")
        shell.run(*as_admin, "users", "remove", "admin")
    shell.run("profiles", "add", "other", "--like", "secured", "--user", "other", *password)
    with shell.up():
        assert shell.run("--profile", "other", "users", "list").split() == ["USER", "other"]
