"""Consumers that check what they are handed while faults happen, and remember it."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from spark_logbus.client import Admin, Cluster, Consumer, ConsumerConfig, FetchedBatch
from spark_logbus.model import Latest, TopicPartition
from tests.fault.load.participants import Participant
from tests.fault.load.records import Content, record_of


class Reader(Participant):
    """Reads partitions from their start: nothing is skipped, and nothing comes twice."""

    def __init__(self, number: int, cluster: Cluster, partitions: Sequence[TopicPartition]) -> None:
        super().__init__(f"reader-{number}")
        self._cluster = cluster
        self.seen: Content = {where: array("q") for where in partitions}

    def work(self) -> None:
        with Consumer(self._cluster) as consumer:
            consumer.assign(self.seen)
            while not self.stopping.is_set():
                for batch in consumer.poll_arrow(0.2):
                    seen = self.seen[batch.topic_partition]
                    assert isinstance(seen, array)
                    assert batch.base_offset == len(seen), "nothing is skipped or repeated"
                    seen.extend(records_of(batch))
                    self.progress += 1

    def has_all(self, content: Content) -> bool:
        """Tells if it has come to the ends."""
        return all(len(seen) >= len(content[where]) for where, seen in self.seen.items())

    def check(self, content: Content) -> None:
        """Fails if it has read anything else; for one that has ended."""
        for where, seen in self.seen.items():
            assert seen == content[where], f"{self.name} read something else in {where}"


@dataclass
class Stretch:
    """Records of a partition that one consumer was handed while it had it."""

    start: int
    records: array[int] = field(default_factory=lambda: array("q"))

    @property
    def end(self) -> int:
        return self.start + len(self.records)


class GroupMember(Participant):
    """Shares a topic with the others of its group. It goes on where another has left off."""

    def __init__(self, number: int, cluster: Cluster, topic: str, group: str) -> None:
        super().__init__(f"{group}-member-{number}")
        self._cluster = cluster
        self._topic = topic
        self._group = group
        self._reads: dict[TopicPartition, Stretch | None] = {}
        self.stretches = defaultdict[TopicPartition, list[Stretch]](list)

    def work(self) -> None:
        config = ConsumerConfig(group=self._group, session_timeout_ms=6_000, auto_commit_ms=200)
        with Consumer(self._cluster, config) as consumer:
            consumer.subscribe(
                self._topic, on_assigned=self._begin, on_revoked=self._end, on_lost=self._end
            )
            while not self.stopping.is_set():
                for batch in consumer.poll_arrow(0.2):
                    self._note(batch)
                self.progress += 1

    def _begin(self, some: Iterable[TopicPartition]) -> None:
        self._reads.update(dict.fromkeys(some))

    def _end(self, some: Iterable[TopicPartition]) -> None:
        for where in some:
            del self._reads[where]

    def _note(self, batch: FetchedBatch) -> None:
        where = batch.topic_partition
        stretch = self._reads[where]  # it reads nothing else
        if stretch is None:
            stretch = self._reads[where] = Stretch(batch.base_offset)
            self.stretches[where].append(stretch)
        assert batch.base_offset == stretch.end, "nothing is skipped or repeated"
        stretch.records.extend(records_of(batch))


def group_has_all(members: Sequence[GroupMember], content: Content) -> bool:
    """Tells if the group has come to the ends."""
    return all(
        any(
            stretch.end >= len(records)
            for member in members
            for stretch in member.stretches[where][-1:]
        )
        for where, records in content.items()
    )


def check_group(members: Sequence[GroupMember], content: Content) -> None:
    """Fails if the members of a group, which have ended, were handed anything else than what is
    there, or have left out anything together."""
    for where, records in content.items():
        stretches = [stretch for member in members for stretch in member.stretches[where]]
        reached = 0
        for stretch in sorted(stretches, key=lambda one: one.start):
            assert records[stretch.start : stretch.end] == stretch.records
            assert stretch.start <= reached, f"{where} is left out from {reached} on"
            reached = max(reached, stretch.end)
        assert reached == len(records)


class EndsWatcher(Participant):
    """Asks for the ends of partitions, as planners of streams do: they never go back."""

    def __init__(self, cluster: Cluster, partitions: Sequence[TopicPartition]) -> None:
        super().__init__("ends-watcher")
        self._admin = Admin(cluster)
        self._topic = partitions[0].topic
        self._newest = dict.fromkeys(partitions, 0)
        self.seen: dict[TopicPartition, set[int]] = {where: set() for where in partitions}

    def work(self) -> None:
        while not self.stopping.is_set():
            described = self._admin.describe([self._topic])[self._topic].partitions
            for number, part in described.items():
                if part.ends is not None:
                    self._note(TopicPartition(self._topic, number), part.ends.high_watermark)
            found = self._admin.list_offsets(dict.fromkeys(self._newest, Latest()))
            for where, end in found.items():
                if end is not None:
                    self._note(where, end)
            self.progress += 1
            self.stopping.wait(0.2)

    def _note(self, where: TopicPartition, end: int) -> None:
        assert end >= self._newest[where], f"{where} ended at {self._newest[where]}, now at {end}"
        self._newest[where] = end
        self.seen[where].add(end)


def records_of(batch: FetchedBatch) -> array[int]:
    return array("q", map(record_of, batch.arrow_batch.column("value").to_pylist()))
