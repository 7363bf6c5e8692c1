"""Stops a process at a point of an atomic write's commit that a test has chosen.

Python imports this when it starts, if the directory of this file is on ``PYTHONPATH``. A point is
armed by a file in the directory ``LOGBUS_KILL_POINTS``, named by the point and the topic that is
written. The first process that comes to it adds its id to the name, so that nobody else stops
there, and stops. What then becomes of it, and of others meanwhile, is for the test to say.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

_MODULE = "spark_logbus.client.writes.atomic_write"
_POINTS = os.environ.get("LOGBUS_KILL_POINTS", "")


def _stop_at(point: str, topics: Iterable[str]) -> None:
    for topic in topics:
        try:
            _armed(point, topic).rename(_armed(point, f"{topic}.{os.getpid()}"))
        except FileNotFoundError:
            continue
        os.kill(os.getpid(), signal.SIGSTOP)


def _armed(point: str, topic: str) -> Path:
    return Path(_POINTS, f"{point}.{topic}")


def _put_points_into(module: ModuleType) -> None:
    # Any, because types rightly have no word for what is done to it here.
    writes: Any = module.__dict__["AtomicWrites"]
    shares: Any = module.__dict__["_shares"]
    commit, decide, publish, publish_all = (
        writes.commit, writes._decide, writes._publish, writes._publish_all,
    )  # fmt: skip

    def stopping_commit(self: Any, identity: Any, write: Any, tasks: Any, **named: Any) -> Any:
        _stop_at("staged", {at.topic for task in tasks for at in task.records})
        return commit(self, identity, write, tasks, **named)

    def stopping_decide(self: Any, identity: Any, decision: Any, promises: Any, told: Any) -> Any:
        _stop_at("prepared", decision.topics)
        standing = decide(self, identity, decision, promises, told)
        if standing is None:
            _stop_at("decided", decision.topics)
        return standing

    def stopping_publish(self: Any, writer: Any, decision: Any, **named: Any) -> Any:
        done = publish(self, writer, decision, **named)
        _stop_at("published", decision.topics)
        return done

    def stopping_publish_all(self: Any, decision: Any, deadline: Any, writer: Any) -> None:
        if any(_armed("half-published", topic).exists() for topic in decision.topics):
            self._publish_call.ask_all("Publishing half", list(shares(decision, writer))[:1])
            _stop_at("half-published", decision.topics)
        publish_all(self, decision, deadline, writer)

    writes.commit, writes._decide = stopping_commit, stopping_decide
    writes._publish, writes._publish_all = stopping_publish, stopping_publish_all


class _Finder(MetaPathFinder):
    """Puts the points into the module when it is imported: imported from here, it would bring
    threads into daemons that fork."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        spec.loader = _PointsLoader(spec.loader)
        return spec


class _PointsLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _put_points_into(module)


if _POINTS:
    sys.meta_path.insert(0, _Finder())
