"""Checks that each docstring of a class or function begins with a noun or a verb.

``python scripts/docstrings.py [PATH...]`` lists those that do not, with file and line; exits with 1
if there is one. Without paths it reads the packages, ``jobs``, ``bench``, ``scripts``, ``examples``
and ``tests``.

A first word of ``NOT_TAKEN`` begins a fragment, whose subject the reader has to find: "Of each
topic", "Those that are left", "With a lock held". Say what it is or does: "Offsets of each topic",
"Returns the partitions that are left", "Runs under the lock".
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from spark_logbus.programs import run_program

ROOT: Final = Path(__file__).parent.parent
ROOMS: Final = (
    "spark_logbus", "avro_columns", "pyspark_logbus", "jobs", "bench", "scripts", "examples",
    "tests",
)  # fmt: skip
_NOT_TAKEN = """
about above after again against all also although and any anybody anyone anything as at because
before behind below beneath beside besides between beyond both but by despite down during each
either else elsewhere even every everybody everyone everything except few for forward from hence
here how however if in inside instead into it its itself just less like likewise many more most
much neither never nobody none nor not nothing of off on once only onto onwards or other others
otherwise out outside over own per rather regardless same several she so some somebody someone
something such than that the their them then there therefore these they this those through
throughout till to together too towards under unless unlike until up upon versus via what whatever
when whenever where wherever whether which whichever while who whoever whom whose why with within
without yet
"""
_LEADING = "a an the all both each every no one two three its their this"

NOT_TAKEN: Final = frozenset(_NOT_TAKEN.split())
#: "The offset" and "A partition" name something: an article and its like only lead to a noun.
LEADING: Final = frozenset(_LEADING.split())


def first_word(docstring: str) -> str:
    """Returns the word that decides: the first, or the second after a word of ``LEADING``."""
    words = docstring.split(maxsplit=3)
    while len(words) > 1 and words[0].lower() in LEADING:
        del words[0]
    return words[0].strip(".,:;()").lower() if words else ""


def fragments(path: Path) -> Iterator[tuple[int, str]]:
    """Yields line and first line of each docstring that begins with a word of ``NOT_TAKEN``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring and first_word(docstring) in NOT_TAKEN:
                yield node.body[0].lineno, docstring.partition("\n")[0]


def main() -> int:
    """Prints each fragment, and how many there are; returns the exit code."""
    paths = [Path(each) for each in sys.argv[1:]] or [ROOT / room for room in ROOMS]
    files = sorted(
        file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])
    )
    found = 0
    for file in files:
        for line, text in fragments(file):
            found += 1
            print(f"{file}:{line}: {text}")
    print(f"{found} docstrings in {len(files)} files begin with neither a noun nor a verb.")
    return 1 if found else 0


if __name__ == "__main__":
    run_program(main)
