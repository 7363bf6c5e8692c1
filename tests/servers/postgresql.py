"""PostgreSQL as a server of its own, with its JDBC driver for Spark.

It listens on loopback, at a port that nobody else gets, with everything in a temporary directory,
and wants a password. It does not run as root: a test that does hands it to another user. Where it
is not installed, Debian's packages of it are unpacked in the user's cache directory.
"""

from __future__ import annotations

import csv
import io
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench.servers import ServerUnavailableError
from bench.servers.artifacts import jars_of
from bench.servers.debian import unpacked
from spark_logbus.load import JdbcTable
from spark_logbus.local.processes import spawn, stop
from tests.helpers import wait_until
from tests.servers.ports import reserved_port

USER = "loader"
PASSWORD = "a secret"
_START_S = 60.0
_STOP_S = 20.0
_SERVER_USERS = ("postgres", "nobody")
# Of all that Debian's package of it needs: its own, and libraries but for those of compilers.
_PROGRAMS = re.compile(r"postgresql-(client-)?\d+")
_LIBRARY = re.compile(r"lib(?!llvm|perl)\S+(?<!-perl)")


@dataclass(frozen=True)
class _Programs:
    """PostgreSQL's programs, and where their libraries are besides the system's directories."""

    directory: Path
    libraries: tuple[Path, ...] = ()

    def environment(self, **more: str) -> dict[str, str]:
        if not self.libraries:
            return {**os.environ, **more}
        return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(map(str, self.libraries)), **more}


@dataclass
class Postgresql:
    """A running server; its database is ``postgres``."""

    url: str
    port: int
    jars: list[Path]
    directory: Path
    programs: _Programs
    process: subprocess.Popen[bytes] = field(repr=False)

    def table(self, name: str, **properties: str) -> JdbcTable:
        """A target, with the credentials that it takes."""
        return JdbcTable(self.url, name, {"user": USER, "password": PASSWORD, **properties})

    def query(self, sql: str) -> list[tuple[str, ...]]:
        """The rows of a query, as texts, through PostgreSQL's own client."""
        done = subprocess.run(
            [self.programs.directory / "psql", "-X", "--csv", "-t", "-P", "null=NULL",
             "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", str(self.port),
             "-U", USER, "-d", "postgres", "-c", sql],
            capture_output=True, text=True, check=False, timeout=_START_S,
            env=self.programs.environment(PGPASSWORD=PASSWORD, PGTZ="UTC"),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return [tuple(row) for row in csv.reader(io.StringIO(done.stdout))]

    def wait_until_ready(self) -> None:
        log = self.directory / "log"

        def ready() -> bool:
            assert self.process.poll() is None, log.read_text(errors="replace")[-3000:]
            done = subprocess.run(
                [self.programs.directory / "pg_isready", "-q", "-h", "127.0.0.1",
                 "-p", str(self.port)],
                check=False, env=self.programs.environment(),
            )  # fmt: skip
            return done.returncode == 0

        wait_until(ready, deadline_s=_START_S, message="PostgreSQL to take connections")


@contextmanager
def postgresql() -> Iterator[Postgresql]:
    """Runs PostgreSQL and yields it when it takes connections. Skips the test if it or its driver
    cannot be installed."""
    try:
        root = _root()
        jars = jars_of(Path(__file__).with_suffix(".xml"))
    except ServerUnavailableError as missing:
        pytest.skip(f"PostgreSQL or its JDBC driver is not at hand: {missing}")
    as_user = _as_user()
    with (
        tempfile.TemporaryDirectory(prefix="logbus-postgresql-") as name,
        reserved_port() as port,
    ):
        directory = Path(name)
        if root is not None and as_user:  # who may not look into this one's cache
            root = shutil.copytree(root, directory / "root", symlinks=True)
        programs = _programs(root)
        data, secret = directory / "data", directory / "password"
        secret.write_text(PASSWORD)
        if as_user:
            user = _server_user()
            for path in (directory, secret):
                os.chown(path, user.pw_uid, user.pw_gid)
        subprocess.run(
            [*as_user, programs.directory / "initdb", "-D", data, "-U", USER, "-A", "scram-sha-256",
             "--pwfile", secret, "-E", "UTF8", "--locale=C", "--no-sync"],
            check=True, capture_output=True, timeout=_START_S, cwd=directory,
            env=programs.environment(),
        )  # fmt: skip
        settings = {"listen_addresses": "127.0.0.1", "port": str(port), "fsync": "off",
                    "unix_socket_directories": name, "timezone": "America/New_York"}  # fmt: skip
        with (data / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{key} = '{value}'\n" for key, value in settings.items())
        command: list[str | Path] = [*as_user, programs.directory / "postgres", "-D", data]
        process = spawn(command, output=directory / "log", env=programs.environment())
        url = f"jdbc:postgresql://127.0.0.1:{port}/postgres"
        server = Postgresql(url, port, jars, directory, programs, process)
        try:
            server.wait_until_ready()
            yield server
        finally:
            stop(server.process, _STOP_S)


def add_driver(spark: SparkSession, jars: list[Path]) -> None:
    """Adds jars to a session that runs already, as ``--jars`` does for a new one."""
    jvm = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()  # type: ignore[union-attr]
    for jar in jars:
        loader.addURL(jvm.java.io.File(str(jar)).toURI().toURL())  # type: ignore[union-attr]


def _root() -> Path | None:
    """Returns None if PostgreSQL is installed, else the root of its unpacked packages."""
    installed = any(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if installed or shutil.which("postgres") is not None:
        return None
    return unpacked("postgresql", _packages())


def _packages() -> list[str]:
    """Returns this Debian's packages of PostgreSQL, with their libraries that are not installed."""
    needed = _lines("apt-cache", "depends", "--recurse", "--important", "postgresql")
    installed = {*_lines("dpkg-query", "-W", "-f", "${Package}\n")}
    libraries = {each for each in needed if _LIBRARY.fullmatch(each)} - installed
    return sorted(libraries.union(each for each in needed if _PROGRAMS.fullmatch(each)))


def _lines(*command: str) -> list[str]:
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_START_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ServerUnavailableError(f"Debian's packages cannot be asked for: {error}") from error
    return ended.stdout.splitlines()


def _programs(root: Path | None) -> _Programs:
    """The newest of Debian's, or those on the PATH, or the unpacked ones."""
    libraries = () if root is None else (*root.glob("usr/lib/*-linux-gnu*"), *root.glob("lib/*"))
    debian = sorted(
        ((root or Path("/")) / "usr/lib/postgresql").glob("*/bin/postgres"),
        key=lambda path: float(path.parts[-3]),
    )
    found = debian[-1] if debian else shutil.which("postgres")
    if found is None:
        raise ServerUnavailableError(f"{root} holds no PostgreSQL.")
    return _Programs(Path(found).resolve().parent, libraries)


def _as_user() -> list[str | Path]:
    """Returns the command that runs a program as another user if this one is root, and ends it with
    the tests."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("PostgreSQL does not run as root, and there is no setpriv to change the user")
    user = _server_user()
    return [setpriv, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups",
            "--pdeathsig=INT"]  # fmt: skip


def _server_user() -> pwd.struct_passwd:
    for name in _SERVER_USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    pytest.skip(f"PostgreSQL does not run as root, and there is none of {', '.join(_SERVER_USERS)}")
