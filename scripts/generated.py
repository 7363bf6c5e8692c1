"""Generated parts of pages: ``<!-- generated: NAME -->`` begins one, ``<!-- end -->`` ends it."""

from __future__ import annotations

import re
from collections.abc import Callable


def parts_called(name: str) -> re.Pattern[str]:
    """Finds parts whose name matches a regular expression: the mark, the name, and the end."""
    return re.compile(rf"(<!-- generated: ({name}) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str, parts: re.Pattern[str], content: Callable[[str], str | None]) -> str:
    """``text`` with what ``content`` says for each name; None leaves a part as it is."""

    def part(found: re.Match[str]) -> str:
        new = content(found[2])
        return found[0] if new is None else f"{found[1]}\n{new}\n\n{found[3]}"

    return parts.sub(part, text)
