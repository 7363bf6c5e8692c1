"""A broker on a real ZooKeeper, asked in the protocol's own words."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_logbus.broker import Broker, NetworkConfig
from spark_logbus.errors import (
    BrokerIdInUseError,
    ConfigError,
    InvalidNameError,
    NotLeaderError,
    OffsetOutOfRangeError,
    TopicExistsError,
    UnknownTopicError,
)
from spark_logbus.log import LogConfig
from spark_logbus.protocol import (
    Api,
    CreateTopicRequest,
    CreateTopicResponse,
    DeleteTopicRequest,
    DeleteTopicResponse,
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    SplitRangePartition,
    SplitRangeRequest,
    SplitRangeResponse,
)
from tests.builders.record_batches import joined, record_batch
from tests.fakes.clock import NOW_US, SECOND
from tests.helpers import wait_until
from tests.servers.broker import (
    address_of,
    broker_here,
    connect,
    create_topic,
    failure,
    is_led,
    offsets_in,
)
from tests.servers.wire import EndedError, Wire, append_request, fetch_request


@pytest.fixture
def broker(tmp_path: Path, chroot: str) -> Iterator[Broker]:
    with broker_here(tmp_path / "data", chroot, log=LogConfig(index_interval_bytes=128)) as broker:
        yield broker


@pytest.fixture
def wire(broker: Broker) -> Iterator[Wire]:
    with connect(broker) as wire:
        create_topic(wire, "t", partitions=2)
        yield wire


# -- append and fetch -------------------------------------------------------------------------


@pytest.mark.parametrize("acks", ["written", "flushed"])
def test_what_was_appended_can_be_fetched(wire: Wire, acks: str) -> None:
    batches = joined(record_batch(3), record_batch(2, payload=b"second"))
    (result,) = wire.append("t", 0, batches, acks=acks).results
    assert (result.base_offset, result.error) == (0, None)
    assert wire.append("t", 0, record_batch(), acks="flushed").results[0].base_offset == 5
    (fetched,) = wire.fetch("t", 0, 0).results
    assert (fetched.log_start_offset, fetched.high_watermark) == (0, 6)
    assert offsets_in(wire.payload) == [(0, 3), (3, 5), (5, 6)]
    wire.fetch("t", 0, 4)
    assert offsets_in(wire.payload)[0] == (3, 5), "from the record batch that holds the offset"
    (fetched,) = wire.fetch("t", 0, 6).results
    assert (fetched.length, fetched.error) == (0, None)
    assert isinstance(failure(wire.fetch("t", 0, 7).results[0].error), OffsetOutOfRangeError)


def test_what_was_flushed_is_visible_at_once(wire: Wire) -> None:
    for number in range(20):
        wire.append("t", 0, record_batch(), acks="flushed")
        assert wire.fetch("t", 0, number).results[0].high_watermark == number + 1


def test_without_acks_there_is_no_response(wire: Wire) -> None:
    data = record_batch()
    for _ in range(3):
        wire.send(Api.APPEND, append_request("t", 0, data, acks="none"), data)
    assert wire.append("t", 0, data).results[0].base_offset == 3


def test_a_failed_append_without_acks_ends_the_connection(broker: Broker, wire: Wire) -> None:
    data = record_batch()
    with connect(broker) as other:
        other.send(Api.APPEND, append_request("gone", 0, data, acks="none"), data)
        assert other.is_ended()
    wire.append("t", 0, data)


def test_a_fetch_waits_for_records(broker: Broker, wire: Wire) -> None:
    with connect(broker) as reader:
        reader.send(Api.FETCH, fetch_request("t", 0, 0, wait_ms=60_000))
        wire.fetch("t", 1, 0)
        wire.append("t", 1, record_batch())  # not what it waits for
        wire.append("t", 0, record_batch(4))
        reader.answer(Api.FETCH, FetchResponse)
        assert offsets_in(reader.payload) == [(0, 4)]
        reader.send(Api.FETCH, fetch_request("t", 0, 4, wait_ms=50))
        assert reader.answer(Api.FETCH, FetchResponse).results[0].length == 0


def test_a_long_poll_before_an_append_on_one_connection(wire: Wire) -> None:
    """Answers keep their order, but the append behind a waiting fetch is done at once."""
    data = record_batch()
    fetch = wire.send(Api.FETCH, fetch_request("t", 0, 0, wait_ms=60_000))
    append = wire.send(Api.APPEND, append_request("t", 0, data), data)
    assert wire.receive().correlation == fetch
    assert wire.receive().correlation == append


# -- offsets, ranges, metadata ----------------------------------------------------------------


def test_offsets_and_ranges(wire: Wire) -> None:
    for number in range(100):
        stamp = NOW_US + number * SECOND
        wire.append("t", 0, record_batch(timestamps=(stamp, stamp)), acks="written")
    wire.append("t", 0, record_batch())
    wanted = [
        ListOffsetsPartition("t", 0, "earliest"),
        ListOffsetsPartition("t", 0, "latest"),
        ListOffsetsPartition("t", 0, "timestamp", NOW_US + 42 * SECOND),
        ListOffsetsPartition("t", 1, "latest"),
        ListOffsetsPartition("t", 2, "latest"),
    ]
    response = wire.call(Api.LIST_OFFSETS, ListOffsetsRequest(wanted), ListOffsetsResponse)
    assert [result.offset for result in response.results] == [0, 101, 42, 0, None]
    assert isinstance(failure(response.results[-1].error), NotLeaderError)
    size = 101 * len(record_batch())
    ranges = [SplitRangePartition("t", 0, 0, 101, size // 4)]
    split = wire.call(Api.SPLIT_RANGE, SplitRangeRequest(ranges), SplitRangeResponse).results[0]
    assert split.size_bytes == size
    assert 3 <= len(split.cuts) <= 4


def test_topics_come_and_go(broker: Broker, wire: Wire) -> None:
    topic_id = create_topic(wire, "other", config={"retention.ms": "60000"})
    response = wire.call(Api.METADATA, MetadataRequest(["other"], ends=True), MetadataResponse)
    assert [(b.broker_id, b.port) for b in response.brokers] == [(1, broker.address.port)]
    (topic,) = response.topics
    assert (topic.topic_id, topic.config) == (topic_id, {"retention.ms": "60000"})
    (partition,) = topic.partitions
    assert (partition.leader, partition.leader_epoch) == (1, 0)
    with pytest.raises(TopicExistsError):
        wire.call(Api.CREATE_TOPIC, CreateTopicRequest("other", 1), CreateTopicResponse)
    wire.call(Api.DELETE_TOPIC, DeleteTopicRequest("other"), DeleteTopicResponse)
    with pytest.raises(UnknownTopicError):
        wire.call(Api.DELETE_TOPIC, DeleteTopicRequest("other"), DeleteTopicResponse)

    def gone() -> bool:
        answer = wire.call(Api.METADATA, MetadataRequest(["other"]), MetadataResponse)
        return not answer.topics

    wait_until(gone)
    everything = wire.call(Api.METADATA, MetadataRequest(), MetadataResponse)
    assert [each.name for each in everything.topics] == ["t"]
    wait_until(lambda: not (broker.config.data_dir / "other-0").exists())


def test_a_deletion_that_comes_late_leaves_the_next_topic_of_that_name(wire: Wire) -> None:
    """A broker that stood still carries it out after another one has."""
    late = DeleteTopicRequest("other", create_topic(wire, "other"))
    wire.call(Api.DELETE_TOPIC, late, DeleteTopicResponse)
    topic_id = create_topic(wire, "other")
    with pytest.raises(UnknownTopicError, match=f"with the id {topic_id}, and stays"):
        wire.call(Api.DELETE_TOPIC, late, DeleteTopicResponse)
    assert is_led(wire, "other", topic_id)
    wire.call(Api.DELETE_TOPIC, DeleteTopicRequest("other", topic_id), DeleteTopicResponse)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "x" * 250, "\x00"])
def test_names_that_cannot_be_topics(wire: Wire, name: str) -> None:
    with pytest.raises(InvalidNameError):
        wire.call(Api.CREATE_TOPIC, CreateTopicRequest(name, 1), CreateTopicResponse)
    with pytest.raises(InvalidNameError):
        wire.call(Api.METADATA, MetadataRequest([name]), MetadataResponse)


def test_silly_numbers_of_partitions(wire: Wire) -> None:
    for partitions in (0, -1, 10**9):
        with pytest.raises(ConfigError):
            wire.call(Api.CREATE_TOPIC, CreateTopicRequest("x", partitions), CreateTopicResponse)


def test_a_topic_deleted_and_created_again_under_a_waiting_fetch(
    broker: Broker, wire: Wire
) -> None:
    wire.append("t", 0, record_batch(5))
    with connect(broker) as reader:
        reader.send(Api.FETCH, fetch_request("t", 0, 5, wait_ms=60_000))
        wire.call(Api.DELETE_TOPIC, DeleteTopicRequest("t"), DeleteTopicResponse)
        result = reader.answer(Api.FETCH, FetchResponse).results[0]
        assert isinstance(failure(result.error), NotLeaderError)
        topic_id = create_topic(wire, "t", partitions=2)
        wait_until(lambda: is_led(wire, "t", topic_id))
        assert isinstance(failure(reader.fetch("t", 0, 5).results[0].error), OffsetOutOfRangeError)
        reader.send(Api.FETCH, fetch_request("t", 0, 0, wait_ms=60_000))
        wire.append("t", 0, record_batch(2))
        reader.answer(Api.FETCH, FetchResponse)
        assert offsets_in(reader.payload) == [(0, 2)]


# -- life -------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_second_broker_with_the_same_id_is_refused(
    tmp_path: Path, chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.servers.broker.SESSION_MS", 10_000)
    monkeypatch.setattr("spark_logbus.zookeeper.ephemeral._EXPIRY_MARGIN_MS", -9_000)
    with broker_here(tmp_path / "one", chroot) as broker:
        with (
            pytest.raises(BrokerIdInUseError, match="Broker id 1 is taken"),
            broker_here(tmp_path / "other", chroot),
        ):
            pass
        with connect(broker) as wire:
            create_topic(wire, "t")


def test_a_broker_whose_id_was_taken_serves_nothing(broker: Broker, wire: Wire) -> None:
    with connect(broker) as reader:
        reader.send(Api.FETCH, fetch_request("t", 0, 0, wait_ms=60_000))
        wait_until(lambda: len(broker._fetches._waiting) > 0)
        broker._identity._lost(BrokerIdInUseError("Broker id 1 is taken."))
        reader.answer(Api.FETCH, FetchResponse)
    data = record_batch()
    with pytest.raises(NotLeaderError, match="serves nothing while another one has its id"):
        wire.append("t", 0, data)


def test_a_data_directory_of_another_broker_is_refused_untouched(
    tmp_path: Path, chroot: str
) -> None:
    with broker_here(tmp_path, chroot):
        pass
    before = sorted(path.name for path in tmp_path.iterdir())
    with (
        pytest.raises(ConfigError, match="belongs to broker '1'"),
        broker_here(tmp_path, chroot, broker_id=2),
    ):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_broker_comes_back_on_its_port_with_its_records(tmp_path: Path, chroot: str) -> None:
    with broker_here(tmp_path, chroot) as broker, connect(broker) as wire:
        create_topic(wire, "t")
        wire.append("t", 0, record_batch(3))
        address = broker.address
    with broker_here(tmp_path, chroot) as broker:
        assert broker.address.port == address.port
        with connect(broker) as wire:
            wait_until(lambda: is_led(wire, "t"))
            wire.fetch("t", 0, 0)
            assert offsets_in(wire.payload) == [(0, 3)]
            partition = wire.call(Api.METADATA, MetadataRequest(["t"], ends=True), MetadataResponse)
            assert partition.topics[0].partitions[0].leader_epoch == 1


def test_a_port_file_that_a_power_loss_emptied_does_not_stop_it(
    tmp_path: Path, chroot: str
) -> None:
    with broker_here(tmp_path, chroot):
        pass
    (tmp_path / "broker.port").write_text("")
    with broker_here(tmp_path, chroot) as broker:
        assert (tmp_path / "broker.port").read_text() == f"{broker.address.port}\n"


def test_waiting_fetches_do_not_hold_up_a_stop(tmp_path: Path, chroot: str) -> None:
    with broker_here(
        tmp_path, chroot, network=NetworkConfig(drain_timeout_ms=60_000)
    ) as broker, connect(broker) as wire:  # fmt: skip
        create_topic(wire, "t")
        wire.send(Api.FETCH, fetch_request("t", 0, 0, wait_ms=60_000))
        wait_until(lambda: len(broker._fetches._waiting) > 0)
        with connect(broker):
            stopping = threading.Thread(target=broker.stop)
            stopping.start()
            assert wire.answer(Api.FETCH, FetchResponse).results[0].length == 0
            stopping.join(60)
            assert not stopping.is_alive()
            with pytest.raises(EndedError):
                wire.receive()
        with pytest.raises(ConnectionError):
            Wire.to(address_of(broker))
