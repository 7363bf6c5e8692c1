"""Processes of the benchmarks' own modules: each gets a task as JSON, and answers in lines."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Self

from bench.kit import ROOT


class Child:
    """Process of one module, gone at the end of the ``with`` block. For one thread."""

    def __init__(self, module: str, task: object) -> None:
        self._name = module
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def line(self) -> str:
        """Waits for the next line; raises SystemExit if the process has ended instead."""
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        if not text:
            raise SystemExit(f"The process {self._name} ended before it answered.")
        return text.strip()

    def go(self) -> None:
        """Tells the process to begin, where it waits for that."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def check(self) -> None:
        """Raises SystemExit if the process has failed."""
        if self._process.poll():
            raise SystemExit(f"{self._name} ended with code {self._process.returncode}.")

    def wait(self, *, deadline_s: float | None = None) -> str:
        """Ends the input, waits for the end, and returns what is left of the output."""
        output, _ = self._process.communicate(timeout=deadline_s)
        self.check()
        return output

    def answer(self, *, deadline_s: float | None = None) -> Any:
        """Waits for the end, and returns the last line, which is JSON."""
        return json.loads(self.wait(deadline_s=deadline_s).splitlines()[-1])
