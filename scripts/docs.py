"""Writes what the documents repeat of the code: the addresses of the tests that they name.

In a page, ``<!-- generated: NAME -->`` begins a generated part and ``<!-- end -->`` ends it. A test
compares the files with what this would write.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATED = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
# A test that a page names: [test_x], without an address of its own.
NAMED = re.compile(r"\[(test_\w+)\](?![(:])")
DEFINED = re.compile(r"^\s*(?:async )?def (test_\w+)\(", re.MULTILINE)


class DocsError(Exception):
    """Something is missing that a document is to show."""


def tests_by_name() -> dict[str, list[str]]:
    """The files, from the project's root, that define a test of that name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in dict.fromkeys(DEFINED.findall(path.read_text())):
            found[name].append(str(path.relative_to(ROOT)))
    return found


def links(page: Path) -> Callable[[str], str]:
    """The addresses of the tests that ``page`` names."""

    def written(text: str) -> str:
        tests = tests_by_name()
        lines = []
        for name in sorted(set(NAMED.findall(text))):
            files = tests.get(name, [])
            if len(files) != 1:
                where = f"are several: {', '.join(files)}" if files else "is none"
                raise DocsError(f"{page.name} names the test {name}, of which there {where}.")
            lines.append(f"[{name}]: {'../' * len(page.relative_to(ROOT).parts[:-1])}{files[0]}")
        return "\n".join(lines)

    return written


def parts(page: Path) -> dict[str, Callable[[str], str]]:
    """What can be generated in a page, from the page's own text."""
    return {"tests": links(page)}


def generated(page: Path) -> str:
    """The text of ``page`` with its generated parts as they are to be."""
    text = page.read_text()
    known = parts(page)

    def part(found: re.Match[str]) -> str:
        outside = GENERATED.sub("", text)
        return f"{found[1]}\n{known[found[2]](outside)}\n\n{found[3]}"

    return GENERATED.sub(part, text)


def files() -> Iterator[tuple[Path, str]]:
    """All files with generated parts, and what they are to hold."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if GENERATED.search(page.read_text()):
            yield page, generated(page)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    check: bool = parser.parse_args().check
    try:
        stale = [(path, text) for path, text in files() if path.read_text() != text]
    except DocsError as error:
        print(error)
        return 1
    for path, text in stale:
        print(f"{path.relative_to(ROOT)} {'is out of date' if check else 'was written'}.")
        if not check:
            path.write_text(text)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
