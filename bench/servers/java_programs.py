"""Small programs in Java, compiled against a server's jars for as long as they are needed."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.servers import ServerUnavailableError
from spark_logbus.errors import JavaNotFoundError
from spark_logbus.local.java import java_executable

_DEADLINE_S = 120.0
_SAID_CHARACTERS = 500


@dataclass(frozen=True)
class JavaProgram:
    """A compiled class with a ``main``."""

    java: str
    class_path: str
    main: str

    def command(self, *options: str) -> list[str]:
        """Returns the command with the JVM's ``options``, but for the program's arguments."""
        return [self.java, *options, "-cp", self.class_path, self.main]


@contextmanager
def compiled(source: Path, jars: Sequence[Path]) -> Iterator[JavaProgram]:
    """Raises ServerUnavailableError where there is no compiler."""
    try:
        java = str(java_executable())
    except JavaNotFoundError as error:
        raise ServerUnavailableError(str(error)) from error
    with tempfile.TemporaryDirectory(prefix="logbus-bench-java-") as classes:
        path = ":".join(map(str, [classes, *jars]))
        ended = subprocess.run(
            [java, "--module", "jdk.compiler/com.sun.tools.javac.Main", "-d", classes, "-cp", path,
             "-sourcepath", str(source.parent), str(source)],
            capture_output=True, text=True, timeout=_DEADLINE_S,
        )  # fmt: skip
        if ended.returncode != 0:
            raise ServerUnavailableError(
                f"{source.name} cannot be compiled with {java}; install a JDK, not only a runtime, "
                f"and set JAVA_HOME to it. It says: "
                f"{(ended.stdout + ended.stderr)[:_SAID_CHARACTERS]}"
            )
        yield JavaProgram(java, path, source.stem)
