"""Spark on a guarded cluster: the driver has a profile, and the workers have no secret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_logbus.broker import NetworkConfig, SecurityConfig, TlsConfig
from spark_logbus.client import Admin, ClientConfig, Cluster
from spark_logbus.coordination.security.access_rules import RuleRegistry
from spark_logbus.coordination.security.users import UserRegistry
from spark_logbus.security.acls import Rule
from spark_logbus.security.logins import PasswordLogin
from spark_logbus.security.tls import ClientTls
from spark_logbus.zookeeper import Session
from tests.servers.broker import broker_here
from tests.servers.certificates import Authority
from tests.servers.spark import PROJECT

PASSWORD = "CANARY-of-the-etl-user"


@pytest.mark.long
def test_workers_without_secrets_read_and_write(tmp_path: Path, chroot: str) -> None:
    authority = Authority(tmp_path / "ca")
    files = authority.files("broker", "127.0.0.1")
    with Session(chroot, client_name="test") as session:
        users = UserRegistry(session)
        users.add("admin", "the admin's own", now_us=1)
        users.add("etl", PASSWORD, now_us=1)
        RuleRegistry(session).add(
            [
                Rule("topic", "t", "user:etl", "read"),
                Rule("topic", "t", "user:etl", "write"),
                Rule("topic", "copy", "user:etl", "all"),
                Rule("writer", "*", "user:etl", "write"),
            ]
        )
    with broker_here(
        tmp_path / "broker",
        chroot,
        network=NetworkConfig(local_socket=False),
        tls=TlsConfig(certificate=files.certificate, key=files.key, port=0, only=True),
        security=SecurityConfig(authenticate=True, authorize=True, super_principals=["user:admin"]),
    ):
        admin = ClientConfig(
            tls=ClientTls(ca=authority.ca),
            login=PasswordLogin(user="admin", password="the admin's own"),
        )
        with Cluster.from_zookeeper(chroot, admin) as cluster:
            for topic in ("t", "copy"):
                Admin(cluster).create_topic(topic, partitions=2)
        found, output = run(tmp_path, chroot, authority)
    assert found["read"] == found["copied"] == list(range(100))
    files_of_spark = [each for each in (tmp_path / "spark").rglob("*") if each.is_file()]
    seen = [output, *(each.read_bytes().decode(errors="replace") for each in files_of_spark)]
    assert len(seen) > 5
    assert not [each[:100] for each in seen if PASSWORD in each]


def run(tmp_path: Path, chroot: str, authority: Authority) -> tuple[dict[str, Any], str]:
    """Runs the program with a profile; returns what it has read, and all that it has said."""
    directory = tmp_path / "profile"
    directory.mkdir()
    (directory / "password").write_text(f"{PASSWORD}\n")
    profiles = directory / "profiles.toml"
    profiles.write_text(
        f'[test]\nzookeeper = "{chroot}"\ntls_ca = "{authority.ca_file}"\nuser = "etl"\n'
        'password_file = "password"\n'
    )
    profiles.chmod(0o600)
    work = tmp_path / "spark"
    work.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.security.spark_program", str(work)],
        cwd=PROJECT,
        env={
            **os.environ,
            "LOGBUS_PROFILES": str(profiles),
            "PYTHONPATH": str(PROJECT),
            "SPARK_LOCAL_DIRS": str(work / "local"),
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-5_000:]
    [line] = [each for each in done.stdout.splitlines() if each.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT ")), output
