"""What jobs/clickstream.py has to write, computed without Spark from the same events.

Which events are late depends on the micro-batches, as Spark documents it: a watermark is the latest
time that the micro-batches before have seen, less the delay, of several streams the earliest; it
moves between micro-batches and never back. A checkpoint keeps the watermark, but not how far each
stream was: after a restart a stream of which nothing came yet holds it where it is. An event is
late if its time is not after the watermark of the micro-batch before, and a window is written when
the watermark has reached its end. So the micro-batches are read from the checkpoint, and nothing
else is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MINUTE_MS = 60_000
WINDOW_MS = MINUTE_MS
DELAY_MS = 10 * MINUTE_MS
CLICK_WITHIN_MS = 5 * MINUTE_MS

Place = tuple[str, int, int]
"""Topic, partition and offset of an event."""

Events = Mapping[Place, Mapping[str, Any]]
"""Their values; ``at_us`` is the time of an event."""


def micro_batches(checkpoint: Path) -> list[list[Place]]:
    """The places of the records of each micro-batch, also of those without any."""
    files = _numbered(checkpoint / "offsets")
    batches: list[list[Place]] = []
    ends: dict[tuple[str, str], int] = {}
    for path in files:
        batch: list[Place] = []
        for line in path.read_text().splitlines()[2:]:
            for topic, partitions in json.loads(line)["to"].items():
                for partition, end in partitions.items():
                    start = ends.get((topic, partition), 0)
                    batch += [(topic, int(partition), offset) for offset in range(start, end)]
                    ends[topic, partition] = end
        batches.append(batch)
    return batches


def next_micro_batch(checkpoint: Path) -> int:
    """The number of the micro-batch with which a query goes on."""
    return len(_numbered(checkpoint / "commits"))


def _numbered(directory: Path) -> list[Path]:
    if not directory.exists():
        return []
    files = [path for path in directory.iterdir() if path.name.isdigit()]
    return sorted(files, key=lambda path: int(path.name))


@dataclass
class Accepted:
    """The events that count, each once, and where the watermark stands after them."""

    views: dict[str, tuple[str, int]] = field(default_factory=dict)  # by id: page, time in µs
    clicks: dict[str, int] = field(default_factory=dict)  # by the view's id: time in µs
    watermark_ms: int = 0
    late: int = 0
    repeated: int = 0


def accept(
    events: Events, batches: Iterable[list[Place]], topics: Sequence[str], *, restarts: set[int]
) -> Accepted:
    """Go through a query's micro-batches; ``topics`` are all that it reads, and with ``restarts``
    the query was started again."""
    accepted = Accepted()
    seen_ms = dict.fromkeys(topics, 0)
    before_ms = 0  # the watermark of the micro-batch before
    for number, batch in enumerate(batches):
        if number in restarts:
            seen_ms = dict.fromkeys(topics, 0)
        for place in batch:
            _take(accepted, events[place], before_ms * 1_000)
        before_ms = accepted.watermark_ms
        for place in batch:
            watermark_ms = events[place]["at_us"] // 1_000 - DELAY_MS
            seen_ms[place[0]] = max(seen_ms[place[0]], watermark_ms)
        accepted.watermark_ms = max(accepted.watermark_ms, min(seen_ms.values()))
    return accepted


def _take(accepted: Accepted, event: Mapping[str, Any], late_us: int) -> None:
    view, at_us = event["view_id"], event["at_us"]
    known = accepted.views if "page" in event else accepted.clicks
    if at_us <= late_us:
        accepted.late += 1
    elif view in known:
        accepted.repeated += 1
    elif "page" in event:
        accepted.views[view] = (event["page"], at_us)
    else:
        accepted.clicks[view] = at_us


Window = tuple[str, int]
"""A page, and the start of a window in milliseconds."""


def _window(page: str, at_us: int) -> Window:
    return page, at_us // 1_000 // WINDOW_MS * WINDOW_MS


def counts(accepted: Accepted) -> dict[Window, int]:
    """The views of each window that is complete."""
    found = Counter(_window(page, at_us) for page, at_us in accepted.views.values())
    return {each: n for each, n in found.items() if each[1] + WINDOW_MS <= accepted.watermark_ms}


def click_through(accepted: Accepted) -> dict[Window, tuple[int, int]]:
    """Views and clicked views of each window in which all views are decided."""
    clicked: Counter[Window] = Counter()
    for view, (page, at_us) in accepted.views.items():
        click_us = accepted.clicks.get(view)
        if click_us is not None and 0 <= click_us - at_us <= CLICK_WITHIN_MS * 1_000:
            clicked[_window(page, at_us)] += 1
    decided_ms = accepted.watermark_ms - CLICK_WITHIN_MS
    found = Counter(_window(page, at_us) for page, at_us in accepted.views.values())
    return {
        each: (n, clicked[each]) for each, n in found.items() if each[1] + WINDOW_MS <= decided_ms
    }
