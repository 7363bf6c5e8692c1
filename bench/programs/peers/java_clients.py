"""The clients in Java, of ``java/``: a process for each measurement."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench.programs.clients.work import Done
from bench.servers.java_programs import JavaProgram

SOURCES = Path(__file__).resolve().parent / "java"
# As Kafka's own scripts start its tools, but for the heap of a client.
_JVM_OPTIONS = ("-Xms1G", "-Xmx1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")


_SILENCE_CODE = 3  # of Client.java


class SilentServerError(Exception):
    """A server delivered no more, though it has more."""


def run_java(program: JavaProgram, given: Mapping[str, object], *, deadline_s: float) -> Done:
    """Raises SilentServerError, and SystemExit for all else that fails."""
    arguments = [f"{name}={value}" for name, value in given.items()]
    ended = subprocess.run(
        [*program.command(*_JVM_OPTIONS), *arguments],
        capture_output=True,
        text=True,
        timeout=deadline_s,
    )
    if ended.returncode == _SILENCE_CODE:
        raise SilentServerError(ended.stderr.strip())
    if ended.returncode != 0:
        raise SystemExit(f"{program.main} ended with code {ended.returncode}: {ended.stderr}")
    return done_of(ended.stdout)


def done_of(output: str) -> Done:
    """The last line; libraries may write others."""
    return Done(**json.loads(output.splitlines()[-1]))
