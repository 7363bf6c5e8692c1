"""Stops a process at a point of an atomic write's commit, or of a partition's move, that a test has
chosen.

Python imports this when it starts, if the directory of this file is on ``PYTHONPATH``. A point is
armed by a file in the directory ``LOGBUS_KILL_POINTS``, named by the point and the topic that is
written or moved. The first process that comes to it adds its id to the name, so that nobody else
stops there, and stops. What then becomes of it, and of others meanwhile, is for the test to say.

The flushes of a process take longer while there is a file ``slow-flushes.<process id>`` with the
seconds that each takes, and fail while there is one ``failing-flushes.<process id>``.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

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


def _with_faults(flush: Callable[[Any], None]) -> Callable[[Any], None]:
    def faulty_flush(descriptor: Any) -> None:
        with suppress(FileNotFoundError):
            time.sleep(float(_armed("slow-flushes", str(os.getpid())).read_text()))
        if _armed("failing-flushes", str(os.getpid())).exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        flush(descriptor)

    return faulty_flush


# Any below, because types rightly have no word for what is done to modules here.


def _into_writes(module: ModuleType) -> None:
    writes: Any = module.__dict__["AtomicWrites"]
    shares: Any = module.__dict__["_shares"]
    commit, decide, publish = writes.commit, writes._decide, writes._publish

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
        # Required is what stands in the way of a write that is not decided yet: the one before it,
        # if it is not known to be published.
        if named["required"]:
            return publish(self, writer, decision, **named)
        if any(_armed("half-published", topic).exists() for topic in decision.topics):
            self._publish_call.ask_all("Publishing half", list(shares(decision, writer))[:1])
            _stop_at("half-published", decision.topics)
        done = publish(self, writer, decision, **named)
        _stop_at("published", decision.topics)
        return done

    writes.commit, writes._decide, writes._publish = (
        stopping_commit, stopping_decide, stopping_publish,
    )  # fmt: skip


def _into_moves(module: ModuleType) -> None:
    """The leader, before and after it has given away the lead."""
    moves: Any = module.__dict__["PartitionMoves"]
    hand_over = moves.hand_over

    def stopping(self: Any, lead: Any) -> Any:
        _stop_at("handing-over", [lead.topic_partition.topic])
        state = hand_over(self, lead)
        _stop_at("handed-over", [lead.topic_partition.topic])
        return state

    moves.hand_over = stopping


def _into_states(module: ModuleType) -> None:
    """A broker, before and after it has taken the lead of partitions, was elected to lead some, or
    has changed who is in sync."""
    states: Any = module.__dict__["PartitionStates"]
    change_in_sync = states.change_in_sync_all

    def around(write: Any, before: str, after: str) -> Any:
        def stopping(self: Any, claims: Any, **named: Any) -> Any:
            topics = {claim.topic_partition.topic for claim in claims}
            _stop_at(before, topics)
            led = write(self, claims, **named)
            _stop_at(after, topics)
            return led

        return stopping

    def stopping_change(self: Any, changes: Any, **named: Any) -> Any:
        topics = {change.topic_partition.topic for change in changes}
        _stop_at("changing-in-sync", topics)
        found = change_in_sync(self, changes, **named)
        _stop_at("changed-in-sync", topics)
        return found

    states.lead_all = around(states.lead_all, "taking", "taken")
    states.elect_all = around(states.elect_all, "electing", "elected")
    states.change_in_sync_all = stopping_change


def _into_followed_logs(module: ModuleType) -> None:
    """A follower that has got something, before it is in its log."""
    logs: Any = module.__dict__["FollowedLog"]
    apply = logs.apply

    def stopping(self: Any, result: Any, payload: Any) -> None:
        _stop_at("copying", [self.topic_partition.topic])
        apply(self, result, payload)

    logs.apply = stopping


def _into_old_logs(module: ModuleType) -> None:
    """A broker that does not lead any more, before and after it has set aside the log."""
    logs: Any = module.__dict__["OldLogs"]
    set_aside = logs.set_aside

    def stopping(self: Any, topic_partition: Any, topic_id: str) -> None:
        _stop_at("setting-aside", [topic_partition.topic])
        set_aside(self, topic_partition, topic_id)
        _stop_at("set-aside", [topic_partition.topic])

    logs.set_aside = stopping


_MODULES: Mapping[str, Callable[[ModuleType], None]] = {
    "spark_logbus.client.writes.atomic_write": _into_writes,
    "spark_logbus.coordination.cluster.moves": _into_moves,
    "spark_logbus.coordination.cluster.partition_states": _into_states,
    "spark_logbus.broker.replica.applying": _into_followed_logs,
    "spark_logbus.broker.replica.old_logs": _into_old_logs,
}


class _Finder(MetaPathFinder):
    """Puts the points into modules when they are imported: imported from here, they would bring
    threads into daemons that fork."""

    def __init__(self) -> None:
        self._left = {*_MODULES}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._left:
            return None
        self._left.remove(name)  # it is found by the others now
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
        _MODULES[module.__name__](module)


if _POINTS:
    _files: Any = os
    _files.fsync, _files.fdatasync = _with_faults(os.fsync), _with_faults(os.fdatasync)
    sys.meta_path.insert(0, _Finder())
