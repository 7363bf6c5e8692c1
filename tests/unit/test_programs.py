"""What programs print, in processes whose output is no terminal."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.helpers import wait_until

PROJECT: Final = Path(__file__).parents[2]
DEADLINE_S: Final = 60
PROGRAMS: Final = sorted(
    [
        *PROJECT.glob("jobs/*.py"),
        *(path for path in PROJECT.glob("scripts/*.py") if "__main__" in path.read_text()),
        PROJECT / "bench" / "__main__.py",
    ]
)


def program(body: str) -> list[str]:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return [
        sys.executable, "-c",
        "import sys\nfrom spark_logbus.programs import run_program\n"
        f"def main():\n{lines}\nrun_program(main)",
    ]  # fmt: skip


@contextmanager
def running(body: str, *, output: int) -> Iterator[subprocess.Popen[bytes]]:
    """A program that prints to ``output`` and ends when its standard input does."""
    process = subprocess.Popen(
        program(body), stdin=subprocess.PIPE, stdout=output, stderr=subprocess.PIPE
    )
    with process:
        yield process


@pytest.mark.parametrize("where", ["file", "pipe"])
def test_a_line_goes_out_when_it_is_printed(tmp_path: Path, where: str) -> None:
    if where == "file":
        written = os.open(tmp_path / "output", os.O_CREAT | os.O_RDWR)
        read = os.open(tmp_path / "output", os.O_RDONLY)
    else:
        read, written = os.pipe()
    os.set_blocking(read, False)
    seen = b""

    def has_come() -> bool:
        nonlocal seen
        try:
            seen += os.read(read, 1_000)
        except BlockingIOError:
            return False
        return seen == b"ready\n"

    with running("print('ready')\nsys.stdin.read()", output=written):
        wait_until(has_come, deadline_s=DEADLINE_S, message="the line, before the program ends")
    for each in (read, written):
        os.close(each)


def ended_without_reader(body: str, *, deaf: bool = False) -> tuple[int, str]:
    """The exit code and what it says on standard error, which has no reader either if ``deaf``."""
    read, written = os.pipe()
    os.close(read)
    done = subprocess.run(
        program(body),
        stdin=subprocess.DEVNULL,
        stdout=written,
        stderr=written if deaf else subprocess.PIPE,
        timeout=DEADLINE_S,
        check=False,
    )
    os.close(written)
    return done.returncode, (done.stderr or b"").decode()


@pytest.mark.parametrize("deaf", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        "print('a line')",
        "print('no line', end='')",
        "for number in range(100_000): print(number)",
        "sys.stdout.buffer.write(bytes(100_000))",
        "from rich.console import Console\nConsole().print('a line')",
    ],
)
def test_a_program_whose_reader_has_gone_ends_quietly(body: str, deaf: bool) -> None:
    assert ended_without_reader(body, deaf=deaf) == (0, "")


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("raise BrokenPipeError('the connection')", 1, "BrokenPipeError: the connection"),
        ("raise SystemExit(3)", 3, ""),
        ("return 4", 4, ""),
        ("raise ValueError('else')", 1, "ValueError: else"),
    ],
)
def test_other_ends_are_what_they_are(body: str, code: int, said: str) -> None:
    done = subprocess.run(
        program(body), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == code
    assert done.stderr.rstrip().endswith(said)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: str(path.relative_to(PROJECT)))
def test_each_program_prints_by_line(path: Path) -> None:
    """``run_program`` sees to it, and so does the main of the command line."""
    last = ast.parse(path.read_text()).body[-1]
    assert isinstance(last, ast.If)
    assert ast.unparse(last.test) == "__name__ == '__main__'"
    assert ast.unparse(last.body[-1]) in ("run_program(main)", "main()")
    if ast.unparse(last.body[-1]) == "main()":
        assert "from spark_logbus.cli import main\n" in path.read_text()
