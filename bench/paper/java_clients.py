"""The clients in Java, of ``java/``: compiled once, then a process for each measurement."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.clients.work import Done
from bench.peers import PeerUnavailableError
from spark_logbus.errors import JavaNotFoundError
from spark_logbus.local.java import java_executable

_SOURCES = Path(__file__).resolve().parent / "java"
_COMPILING_DEADLINE_S = 120.0
# As Kafka's own scripts start its tools, but for the heap of a client.
_JVM_OPTIONS = ("-Xms1G", "-Xmx1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")


@dataclass(frozen=True)
class JavaProgram:
    """A compiled class with a ``main``."""

    command: Sequence[str]

    def run(self, arguments: Mapping[str, object], *, deadline_s: float) -> Done:
        ended = subprocess.run(
            [*self.command, *(f"{name}={value}" for name, value in arguments.items())],
            capture_output=True,
            text=True,
            timeout=deadline_s,
        )
        if ended.returncode != 0:
            raise SystemExit(
                f"{self.command[-1]} ended with code {ended.returncode}: {ended.stderr}"
            )
        return done_of(ended.stdout)


def done_of(output: str) -> Done:
    """The last line; libraries may write others."""
    return Done(**json.loads(output.splitlines()[-1]))


@contextmanager
def compiled(main: str, jars: Sequence[Path], *, sources: Path = _SOURCES) -> Iterator[JavaProgram]:
    """Raises PeerUnavailableError where there is no compiler."""
    try:
        java = str(java_executable())
    except JavaNotFoundError as error:
        raise PeerUnavailableError(str(error)) from error
    with tempfile.TemporaryDirectory(prefix="logbus-bench-java-") as classes:
        path = ":".join(map(str, [classes, *jars]))
        ended = subprocess.run(
            [java, "--module", "jdk.compiler/com.sun.tools.javac.Main", "-d", classes, "-cp", path,
             "-sourcepath", str(sources), str(sources / f"{main}.java")],
            capture_output=True, text=True, timeout=_COMPILING_DEADLINE_S,
        )  # fmt: skip
        if ended.returncode != 0:
            raise PeerUnavailableError(
                f"{main}.java cannot be compiled with {java}; install a JDK, not only a runtime, "
                f"and set JAVA_HOME to it. It says: {(ended.stdout + ended.stderr)[:500]}"
            )
        yield JavaProgram([java, *_JVM_OPTIONS, "-cp", path, main])
