"""All kinds of clients at once on one topic, and the check of all that they have seen."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from spark_logbus.client import Admin, Cluster
from spark_logbus.model import TopicPartition
from tests.fault.load.changes import Changer
from tests.fault.load.checks import (
    check_content,
    check_ends,
    read_all,
    wait_until_published,
)
from tests.fault.load.compacted import (
    COMPACTED,
    CONFIG,
    KeyedReader,
    KeyedWriter,
    check_compacted,
)
from tests.fault.load.machines import Machines
from tests.fault.load.participants import Everyone, Participant
from tests.fault.load.readers import EndsWatcher, GroupMember, Reader, check_group, group_has_all
from tests.fault.load.records import WAIT_S, Content
from tests.fault.load.writers import AtomicWriter, Filler, KilledWriters, Sender, Writer
from tests.helpers import wait_until

logger = logging.getLogger(__name__)


class Load:
    """Producers, writers of atomic writes, consumers and a group on one topic."""

    def __init__(
        self,
        machines: Machines,
        local: Cluster,
        remote: Cluster,
        topic: str,
        directory: Path,
        *,
        filling: int,
        moving: bool,
        replicas: int,
        writers: Sequence[Writer],
        others: Sequence[Participant],
        compacting: bool,
    ) -> None:
        partitions = [
            TopicPartition(topic, number)
            for number in Admin(local).describe([topic], ends=False)[topic].partitions
        ]
        self._machines = machines
        self._compacting = compacting
        self._cluster = local
        self.partitions = partitions
        self.writers: list[Writer] = [
            *writers,
            Sender(2, local, partitions, "send"),
            Sender(3, remote, partitions, "send_many"),
            Sender(4, local, partitions, "send_arrow"),
            AtomicWriter(5, local, partitions),
            AtomicWriter(6, remote, partitions),
            KilledWriters(7, local, partitions, machines.points, directory),
        ]
        Admin(local).create_topic(COMPACTED, partitions=1, config=CONFIG, replicas=replicas)
        self._keyed_writer, self._keyed_reader = KeyedWriter(8, local), KeyedReader(remote)
        self._filler = Filler(local, dict.fromkeys(partitions, filling))
        self._readers = [Reader(1, local, partitions), Reader(2, remote, partitions)]
        self._group = [GroupMember(number, local, topic, "shared") for number in (1, 2)]
        self._ends = EndsWatcher(remote, partitions)
        changer = Changer(
            remote, topic, brokers=len(machines.brokers), moving=moving, replicas=replicas,
            creating=machines.creating,
        )  # fmt: skip
        watching: list[Participant] = [
            *self._readers, *self._group, self._ends, changer, self._keyed_reader, *others
        ]  # fmt: skip
        writing = [*self.writers, self._keyed_writer]
        self._writing = Everyone(writing)
        self.everyone = Everyone([*writing, *watching])
        #: All that is in the logs, at the end.
        self.content: Content = {}

    @contextmanager
    def at_work(self) -> Iterator[Everyone]:
        """Lets all work. At the end the writers stop first, and the readers read to the ends of
        all logs: these are checked."""
        with self.everyone.at_work():
            yield self.everyone
            self._writing.stop(self._writing.participants)
            self.everyone.check()
            wait_until_published(self._machines.zookeeper)
            self.content = read_all(self._cluster, self.partitions)
            self._wait_for_readers(self.content)
        self._check(self.content)

    def _wait_for_readers(self, content: Content) -> None:
        def have_all() -> bool:
            self.everyone.check()
            consumers = all(reader.has_all(content) for reader in self._readers)
            return consumers and group_has_all(self._group, content)

        wait_until(have_all, deadline_s=WAIT_S, message="consumers to read all")

    def _check(self, content: Content) -> None:
        check_content(content, [self._filler, *self.writers])
        for reader in self._readers:
            reader.check(content)
        check_group(self._group, content)
        check_compacted(
            self._cluster, self._keyed_writer, self._keyed_reader, compacting=self._compacting
        )
        check_ends(self._ends.seen, content, self.writers)
        logger.info(
            "%d records in %d partitions, %d atomic writes, %d of killed writers; all as it "
            "should be.",
            sum(map(len, content.values())), len(content),
            sum(len(writer.committed) for writer in self.writers),
            len(self.writers[-1].committed),
        )  # fmt: skip


@contextmanager
def loaded(
    machines: Machines,
    topic: str,
    directory: Path,
    *,
    filling: int = 100,
    moving: bool = True,
    replicas: int = 1,
    writers: Sequence[Writer] = (),
    others: Sequence[Participant] = (),
    compacting: bool = True,
) -> Iterator[Load]:
    """A load on a topic that is there, which gets so many large records before into each of its
    partitions; it begins with ``at_work``. ``writers``, whose numbers are from 10 on, work with
    it; ``others`` too, and stop after all writers. ``compacting``: brokers do so."""
    with ExitStack() as stack:
        local = stack.enter_context(machines.connect())
        remote = stack.enter_context(machines.connect(local_sockets=False))
        yield Load(
            machines, local, remote, topic, directory,
            filling=filling, moving=moving, replicas=replicas, writers=writers, others=others,
            compacting=compacting,
        )  # fmt: skip
