"""Reading back of all that is in the logs, and its comparison with what their writers know."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from spark_logbus.client import Admin, Cluster, RangeReader
from spark_logbus.coordination.writes.writers import WriterRegistry
from spark_logbus.model import Latest, OffsetRange, TopicPartition
from spark_logbus.zookeeper import Session
from tests.fault.load.readers import records_of
from tests.fault.load.records import WAIT_S, Content, Record, writer_of
from tests.fault.load.writers import Sender, Shares, Writer
from tests.helpers import wait_until

Found = Mapping[Record, tuple[TopicPartition, int]]


def wait_until_published(zookeeper: str) -> None:
    """Waits until brokers have published all that was decided."""
    with Session(zookeeper, client_name="test") as session:
        registry = WriterRegistry(session)
        wait_until(
            lambda: not registry.pending().states,
            deadline_s=WAIT_S, message="decided writes to be published",
        )  # fmt: skip


def read_all(cluster: Cluster, partitions: Sequence[TopicPartition]) -> Content:
    """Reads all that consumers may see, of which each offset has to be there."""
    ends = Admin(cluster).list_offsets(dict.fromkeys(partitions, Latest()))
    content: dict[TopicPartition, array[int]] = {}
    for where in partitions:
        records = content[where] = array("q")
        for batch in RangeReader(cluster, OffsetRange(where, 0, ends[where] or 0)):
            assert batch.base_offset == len(records), f"{where} has a gap"
            records.extend(records_of(batch))
        assert len(records) == ends[where]
    return content


def check_content(content: Content, writers: Sequence[Writer]) -> None:
    """Each record that was acknowledged is at its offset, each write that was committed is whole,
    and there is nothing else, nor anything twice."""
    found: dict[Record, tuple[TopicPartition, int]] = {}
    senders = {each.number for each in writers if isinstance(each, Sender)}
    for where, records in content.items():
        newest: dict[int, Record] = {}
        for offset, record in enumerate(records):
            assert record not in found, f"{record} is at {found[record]} and {(where, offset)}"
            found[record] = (where, offset)
            number = writer_of(record)
            if number in senders:
                assert newest.get(number, -1) < record, f"{record} is out of order in {where}"
                newest[number] = record
    wanted = 0
    for writer in writers:
        for where, offset, record in writer.places:
            assert found.get(record) == (where, offset), (
                f"{writer.name} was told that {record} is at {offset} of {where}; it is at "
                f"{found.get(record)}"
            )
        wanted += len(writer.places)
        for shares in writer.committed:
            check_whole(shares, found)
            wanted += sum(map(len, shares.values()))
    assert len(found) == wanted, "what was not acknowledged, or aborted, is there"


def check_whole(shares: Shares, found: Found) -> None:
    """Each share of a write is there, in its order; records of others may be in between."""
    for where, records in shares.items():
        before = -1
        for record in records:
            at, offset = found.get(record, (None, -1))
            assert at == where, f"{record} of a committed write is missing in {where}"
            assert offset > before, f"{record} of a write is out of order in {where}"
            before = offset


def check_ends(
    seen: Mapping[TopicPartition, set[int]], content: Content, writers: Sequence[Writer]
) -> None:
    """No end that anybody was told is in the midst of an atomic write."""
    for where, records in content.items():
        at = {record: offset for offset, record in enumerate(records)}
        for writer in writers:
            for shares in writer.committed:
                first, last = (at[shares[where][index]] for index in (0, -1))
                inside = seen[where] & {*range(first + 1, last + 1)}
                assert not inside, f"{where} ended at {inside}, in a write from {first} to {last}"
