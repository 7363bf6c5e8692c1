"""A watch on the states of topics' partitions: tells of which topics a state has changed.

One node a topic is watched, the parent of its partitions, whose data every transaction sets that
gives a partition another leader (see ``partition_states``). A broker of an earlier release does
not, so who relies on this reads all states now and then as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spark_logbus.coordination import paths
from spark_logbus.coordination.cluster.topic_records import TopicRecord
from spark_logbus.zookeeper.nodes import Nodes
from spark_logbus.zookeeper.watches import Change, WatchedRefresh


class StateWatch:
    """Calls ``changed`` with names of topics, some of whose states may have changed: on the
    session's worker, after the watch was set anew, so that what is read from then on misses
    nothing. Changes in quick succession may come as one, and after a reconnection all topics count
    as changed. ``changed`` must not block. Thread-safe."""

    def __init__(self, nodes: Nodes, changed: Callable[[set[str]], None]) -> None:
        self._nodes = nodes
        self._changed = changed
        self._topic_ids: Mapping[str, str] = {}  # replaced as a whole
        self._refreshed = WatchedRefresh(self._nodes, "partition states", self._refresh)

    def start(self) -> None:
        self._refreshed.start()

    def cancel(self) -> None:
        """Watches nothing from now on; a call of ``changed`` that is under way has ended."""
        self._refreshed.cancel()

    def follow(self, topics: Mapping[str, TopicRecord]) -> None:
        """Watches these topics from now on, and no others; those that are new count as changed."""
        before = self._topic_ids
        self._topic_ids = {name: record.topic_id for name, record in topics.items()}
        new = self._topic_ids.items() - before.items()
        self._refreshed.stale(paths.partitions(name) for name, _ in new)

    def _refresh(self, change: Change) -> None:
        by_path = {paths.partitions(name): name for name in self._topic_ids}
        stale = by_path if change.everything else by_path.keys() & change.paths
        nodes = self._nodes.get_many(stale, watch=self._refreshed.watch)
        unwatched = [path for path, node in nodes.items() if node is None or node.refused]
        if unwatched:
            self._refreshed.look_again(unwatched)
        if nodes:
            self._changed({by_path[path] for path in nodes})
