"""Writes tables, pictures and ratios of the documents as Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from bench.kit.result import Spread

WIDTH: Final = 100  # of the documents' lines
CHARTS: Final = "charts"  # beside the pages


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table; empty without rows."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"| {' | '.join(headings)} |", "|---" * len(headings) + "|", *lines])


def paragraph(text: str) -> str:
    """Wraps a text."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def image(name: str, alt: str) -> str:
    """Returns a picture; ``alt`` says in words what it shows."""
    text = alt.replace("[", "(").replace("]", ")")
    return paragraph(f"![{text}]({CHARTS}/{name}.svg)")


def ends(ratios: Iterable[Spread], mark: str = "**") -> str:
    """Returns the lowest and the highest of medians."""
    medians = [one.median for one in ratios]
    return " to ".join(dict.fromkeys(marked(end, mark) for end in (min(medians), max(medians))))


def marked(ratio: float, mark: str = "**") -> str:
    """Returns a ratio as text, between marks if it says that logbus is behind."""
    text = f"{ratio:,.2f}" if ratio < 2 else f"{ratio:,.1f}" if ratio < 10 else f"{ratio:,.0f}"
    return f"{mark}{text}{mark}" if float(text.replace(",", "")) < 1 else text
