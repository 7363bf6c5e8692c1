"""Spark on a guarded cluster: the driver has a profile, and the workers have no secret."""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_logbus.broker import NetworkConfig, SecurityConfig, TlsConfig
from spark_logbus.broker.security import known
from spark_logbus.client import Admin, ClientConfig, Cluster
from spark_logbus.coordination.security.access_rules import RuleRegistry
from spark_logbus.coordination.security.users import UserRegistry
from spark_logbus.security.acls import Rule
from spark_logbus.security.logins import PasswordLogin
from spark_logbus.security.tls import ClientTls
from spark_logbus.security.tokens import Claims, sign
from spark_logbus.zookeeper import Session
from tests.helpers import wait_until
from tests.integration.security.spark_program import RECORDS
from tests.servers.broker import broker_here
from tests.servers.certificates import Authority, Files
from tests.servers.hanging import descendants
from tests.servers.spark_processes import Driver, Spark, environment, standalone

PASSWORD = "CANARY-of-the-etl-user"
ADMIN = PasswordLogin(user="admin", password="the admin's own")
VALUES = [f"{number:04}" for number in range(RECORDS)]
MAY_READ_COPY = Rule("topic", "copy", "user:etl", "read")
RULES = [
    Rule("topic", "t", "user:etl", "read"),
    Rule("topic", "t", "user:etl", "write"),
    MAY_READ_COPY,
    Rule("topic", "copy", "user:etl", "write"),
    Rule("writer", "*", "user:etl", "write"),
]
# Python's part of the logs, in drivers and workers.
LOGS_ALL = "import logging; logging.basicConfig(level=logging.DEBUG)\n"
JVMS_LOG_ALL = """\
# A driver of Python keeps back what has no level of its own.
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
logger.spark.name = org.apache.spark
logger.spark.level = debug
"""


@dataclass
class Site:
    """A guarded cluster with the topics t and copy, and what nobody but its driver may see."""

    directory: Path
    session: Session
    chroot: str
    authority: Authority
    client: Files
    tokens: list[bytes]

    @property
    def secrets(self) -> dict[str, list[bytes]]:
        body = "".join(self.client.key.read_text().splitlines()[1:-1])
        found = {"the password": forms(PASSWORD.encode()), "the private key": [body[:60].encode()]}
        found["the private key"] += forms(base64.b64decode(body)[-90:])
        for number, token in enumerate(self.tokens):
            found[f"token {number}"] = forms(token[:32])
        return found

    def driver_environment(self) -> dict[str, str]:
        """Writes the profile; returns variables that name it."""
        directory = self.directory / "profile"
        directory.mkdir()
        (directory / "password").write_text(f"{PASSWORD}\n")
        profiles = directory / "profiles.toml"
        profiles.write_text(
            f'[test]\nzookeeper = "{self.chroot}"\ntls_ca = "{self.authority.ca_file}"\n'
            f'tls_certificate = "{self.client.certificate}"\ntls_key = "{self.client.key}"\n'
            'user = "etl"\npassword_file = "password"\n'
        )
        profiles.chmod(0o600)
        return {"LOGBUS_PROFILES": str(profiles), **self.logging_environment()}

    def logging_environment(self) -> dict[str, str]:
        directory = self.directory / "logs-all"
        directory.mkdir(exist_ok=True)
        (directory / "sitecustomize.py").write_text(LOGS_ALL)
        (directory / "log4j2.properties").write_text(JVMS_LOG_ALL)
        options = f"-Dlog4j2.configurationFile={directory / 'log4j2.properties'}"
        paths = [str(directory), environment()["PYTHONPATH"]]
        return {
            "PYTHONPATH": os.pathsep.join(paths),
            "JDK_JAVA_OPTIONS": options,
            "SPARK_LOCAL_DIRS": str(self.directory / "local"),
        }

    def worker_environment(self) -> dict[str, str]:
        """Returns all the variables that Spark's servers and executors have."""
        home = self.directory / "empty-home"
        home.mkdir()
        names = ("PATH", "JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP", "SPARK_DAEMON_MEMORY")
        usual = environment()
        return {
            **{name: usual[name] for name in names},
            "HOME": str(home),
            "SPARK_DAEMON_JAVA_OPTS": os.environ["SPARK_DAEMON_JAVA_OPTS"],
            **self.logging_environment(),
        }


@pytest.fixture
def site(tmp_path: Path, chroot: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    authority = Authority(tmp_path / "authority")
    files, tokens = authority.files("broker", "127.0.0.1"), list[bytes]()

    def noted(claims: Claims, key: bytes) -> bytes:
        tokens.append(sign(claims, key))
        return tokens[-1]

    monkeypatch.setattr(known, "sign", noted)
    with Session(chroot, client_name="test") as session:
        users = UserRegistry(session)
        users.add(ADMIN.user, ADMIN.password, now_us=1)
        users.add("etl", PASSWORD, now_us=1)
        RuleRegistry(session).add(RULES)
        with broker_here(
            tmp_path / "broker",
            chroot,
            network=NetworkConfig(local_socket=False),
            tls=TlsConfig(
                certificate=files.certificate,
                key=files.key,
                client_ca=authority.ca_file,
                client_certificates="optional",
                port=0,
            ),
            security=SecurityConfig(
                authenticate=True, authorize=True, super_principals=["user:admin"]
            ),
        ):
            config = ClientConfig(tls=ClientTls(ca=authority.ca), login=ADMIN)
            with Cluster.from_zookeeper(chroot, config) as cluster:
                for topic in ("t", "copy"):
                    Admin(cluster).create_topic(topic, partitions=2)
            client = authority.files("etl-host")
            yield Site(tmp_path, session, chroot, authority, client, tokens)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_workers_without_secrets_read_write_and_load_exactly_once(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    servers, work = site.directory / "servers", site.directory / "work"
    servers.mkdir()
    work.mkdir()
    with standalone(servers, site.worker_environment()) as spark:
        driver = Driver(
            "tests.integration.security.spark_program", spark.url, str(work),
            log=site.directory / "driver.log", env=site.driver_environment(),
        )  # fmt: skip
        try:
            stands_at(driver, "worker-killed")
            processes = seen_of_processes(spark, driver)
            os.kill(spark.servers[1].process.pid, signal.SIGKILL)  # its executor ends with it
            spark.servers[1].process.wait()
            (work / "worker-killed").touch()
            stands_at(driver, "revoked")
            processes |= seen_of_processes(spark, driver)
            RuleRegistry(site.session).remove([MAY_READ_COPY])
            (work / "revoked").touch()
            wait_until(lambda: driver.ended, deadline_s=240, message="the driver's end")
            assert driver.process.returncode == 0, driver.said()[-5_000:]
        finally:
            driver.kill()
    [line] = [each for each in driver.said().splitlines() if each.startswith("RESULT ")]
    found = json.loads(line.removeprefix("RESULT "))
    assert found["read"] == found["copied"] == found["loaded"] == VALUES
    assert "user:etl may not read the topic copy" in found["failure"]
    assert len(site.tokens) >= 4
    look_for_secrets(site, {**processes, "the broker's log": caplog.text.encode()})


def stands_at(driver: Driver, place: str) -> None:
    wait_until(
        lambda: driver.alive() and f"AT {place}" in driver.said(), deadline_s=240, message=place
    )


def seen_of_processes(spark: Spark, driver: Driver) -> dict[str, bytes]:
    """Command lines and variables of all processes of Spark."""
    parents = [driver.process.pid, *spark.pids()]
    found = {}
    for pid in [each for parent in parents for each in (parent, *descendants(parent))]:
        for part in ("cmdline", "environ"):
            try:
                found[f"/proc/{pid}/{part}"] = Path(f"/proc/{pid}/{part}").read_bytes()
            except OSError:
                continue  # it ended meanwhile
    assert len(found) > 16
    return found


def look_for_secrets(site: Site, places: Mapping[str, bytes]) -> None:
    """Fails where a secret is in one of the places, or in a file that is not the driver's own."""
    own = [site.directory / "profile" / "password", site.client.key]
    files = [each for each in site.directory.rglob("*") if each.is_file() and each not in own]
    names = {str(each.relative_to(site.directory)) for each in files}
    for part in ("work/events/", "work/checkpoint/offsets/", "work/page-", "work/listener",
                 "work/progress", "driver.log", "servers/worker-0.log", "servers/work-0/app-",
                 "work/warehouse/t/", "broker/"):  # fmt: skip
        assert any(each.startswith(part) for each in names), f"{part} was not looked at"
    shown = {**places, **{str(each): each.read_bytes() for each in files}}
    for log in [
        site.directory / "driver.log",
        *site.directory.glob("servers/work-*/app-*/*/stderr"),
    ]:
        assert re.search(rb"^\d\d:\d\d:\d\d DEBUG", shown[str(log)], re.MULTILINE), (
            f"{log} has no DEBUG"
        )
    assert b"DEBUG:py4j" in shown[str(site.directory / "driver.log")]
    found = [
        f"{secret} in {place}"
        for secret, ways in site.secrets.items()
        for place, content in shown.items()
        if any(way in content for way in ways)
    ]
    assert not found, found


def forms(secret: bytes) -> list[bytes]:
    """The ways in which bytes are usually shown."""
    shifted = [base64.b64encode(secret[skipped:])[:24] for skipped in range(3)]
    text = repr(secret)[2:-1]
    signed = ", ".join(str(each - 256 if each > 127 else each) for each in secret[:12])
    return [
        secret,
        *shifted,
        *(each.translate(bytes.maketrans(b"+/", b"-_")) for each in shifted),
        secret.hex().encode()[:48],
        secret.hex().upper().encode()[:48],
        text.encode()[:60],
        json.dumps(text).encode()[1:60],
        signed.encode(),
        secret.decode("latin-1").encode("utf-16-le"),
        secret.decode("latin-1").encode(),
    ]


def test_secrets_are_found_in_every_form() -> None:
    secret = bytes(range(200, 232))
    shown = [
        b"x" + secret,
        *(base64.b64encode(b"abc"[:number] + secret + b"tail") for number in range(3)),
        secret.hex().encode(),
        f"Token({secret!r})".encode(),
        str([each - 256 for each in secret]).encode(),
        secret.decode("latin-1").encode(),
    ]
    for each in shown:
        assert any(way in each for way in forms(secret)), each
    assert not any(way in bytes(sys.maxsize.bit_length() * 100) for way in forms(secret))
