"""``scripts/bench runs``: a program several times, with servers and processes of their own each
time; raw results of all go into one file.

What the processes have for their lifetime, such as where their memory lies or what a JVM has
compiled, is the same for all rounds of one run. Several runs show how far results lie apart when
somebody else measures them; ``scripts/bench report`` shows the median of each.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from bench.kit.harness import console
from bench.programs.report.program import PROGRAMS


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="A program several times. Example: scripts/bench runs 2 clients --rounds 3 "
        "--csv clients.csv"
    )
    parser.add_argument("times", type=int, help="how often")
    parser.add_argument("program", choices=sorted(PROGRAMS), help="whose raw results are kept")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="of the program; among them --csv"
    )
    return parser


def main() -> int:
    """The exit code of the first run that fails, else 0."""
    args = parser().parse_args()
    if args.times < 1:
        raise SystemExit(f"A program runs once or more, not {args.times} times.")
    if not any(given.partition("=")[0] == "--csv" for given in args.arguments):
        raise SystemExit("The runs go into one file; name it with --csv.")
    for number in range(1, args.times + 1):
        console.print(f"Run {number} of {args.times}:", highlight=False)
        code = _run([args.program, *args.arguments, *(["--add"] if number > 1 else [])])
        if code:
            return code
    return 0


def _run(arguments: list[str]) -> int:
    """Runs one process; where this one is ended, it ends first, and stops its servers."""
    with subprocess.Popen([sys.executable, "-m", "bench", *arguments]) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:  # a terminal sends it to both
            process.wait()
            raise
        except SystemExit:  # SIGTERM came to this one alone
            process.terminate()
            process.wait()
            raise
