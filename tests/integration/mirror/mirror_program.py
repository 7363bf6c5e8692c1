"""A mirror that stands still (SIGSTOP) between two of its steps, for a test to kill it there.

``mirror_program.py source target topic point [audit]``: *planned*, *half-staged*,
*committed* (visible, and not noted), *noted*. At another point it is stopped by
``stopping/sitecustomize.py``.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from spark_logbus.mirror import Mirror, MirrorConfig, open_mirror
from spark_logbus.selection import Topics


def stand_still() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def stopping_reads(mirror: Mirror) -> None:
    """Have the source stop the process when it has brought two record batches."""
    source: Any = mirror._source
    read, brought = source.read, []

    def stopping_read(*args: Any, **named: Any) -> Iterator[Any]:
        for batch in read(*args, **named):
            yield batch
            brought.append(batch)
            if len(brought) == 2:
                stand_still()

    source.read = stopping_read


def main() -> None:
    source, target, topic, point = sys.argv[1:5]
    audit = sys.argv[5:] == ["audit"]
    config = MirrorConfig(name=f"mirror-{topic}", topics=Topics((topic,)), audit=audit)
    with open_mirror(config, target=target, zookeeper=source) as mirror:
        assert mirror.plan_round()
        if point == "planned":
            stand_still()
        if point == "half-staged":
            stopping_reads(mirror)
        staged = mirror.stage_round()
        commit = mirror.commit_round(staged)
        if point == "committed":
            stand_still()
        mirror.note_round(commit, staged)
        stand_still()


if __name__ == "__main__":
    main()
