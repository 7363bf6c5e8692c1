"""Tables and pictures of the documents, as Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

WIDTH: Final = 100  # of the documents' lines
CHARTS: Final = "charts"  # beside the pages


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Empty without rows."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"| {' | '.join(headings)} |", "|---" * len(headings) + "|", *lines])


def paragraph(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def image(name: str, alt: str) -> str:
    """``alt`` says in words what the picture shows."""
    text = alt.replace("[", "(").replace("]", ")")
    return paragraph(f"![{text}]({CHARTS}/{name}.svg)")


def verbatim(lines: Iterable[str]) -> str:
    """Lines as they are, but wrapped."""
    wrapped = (
        textwrap.fill(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False) for line in lines
    )
    return "\n".join(["```", *wrapped, "```"])
