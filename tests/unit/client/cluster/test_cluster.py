from __future__ import annotations

import pickle
import socket
import threading
from contextlib import suppress

import pytest

from spark_logbus.client import Bootstrap, ClientConfig, Cluster
from spark_logbus.errors import (
    BrokerUnavailableError,
    NotLeaderError,
    RequestTimeoutError,
    UnknownTopicError,
)
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.protocol import Api, MetadataRequest
from spark_logbus.retry import Deadline
from tests.builders.arrow_batches import QUICK, T0, T1
from tests.fakes.broker import FakeCluster


def asked_for(fake: FakeCluster, topic: str) -> int:
    return sum(
        isinstance(request, MetadataRequest) and request.topics == [topic]
        for broker in fake.brokers
        for request in broker.requests
    )


def test_metadata_is_asked_for_once_and_again_when_in_doubt(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create("t", partitions=2)
    for _ in range(3):
        assert cluster.leader(T0, cluster.retry_deadline()) == fake.brokers[0].address
        assert cluster.leader(T1, cluster.retry_deadline()) == fake.brokers[1].address
    assert asked_for(fake, "t") == 1
    fake.partition(T0).leader = 2
    cluster.invalidate("t")
    assert cluster.cached_leader(T0) == fake.brokers[0].address
    assert cluster.leader(T0, cluster.retry_deadline()) == fake.brokers[1].address
    assert asked_for(fake, "t") == 2


def test_metadata_grows_old(fake: FakeCluster) -> None:
    fake.create("t")
    config = ClientConfig(metadata_max_age_ms=1)
    with Cluster.connect(fake.bootstrap, config) as cluster:
        known = cluster.topic("t", cluster.retry_deadline())
        while cluster.topic("t", cluster.retry_deadline()) is known:
            pass
    assert asked_for(fake, "t") == 2


def test_a_topic_is_unknown_only_when_no_broker_knows_it(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create("t")
    fake.brokers[0].hears_of_topics = False
    for _ in range(5):
        cluster.invalidate("t")
        assert cluster.topic("t", cluster.retry_deadline()).topic_id == "id-t"
    with pytest.raises(UnknownTopicError, match="'other'"):
        cluster.topic("other", cluster.retry_deadline())
    assert asked_for(fake, "other") == 2
    with pytest.raises(UnknownTopicError, match="partitions 0 to 0, not 7"):
        cluster.leader(TopicPartition("t", 7), cluster.retry_deadline())


def test_a_deleted_topic_is_dropped(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    cluster.topic("t", cluster.retry_deadline())
    del fake.topics["t"]
    cluster.invalidate("t")
    with pytest.raises(UnknownTopicError):
        cluster.topic("t", cluster.retry_deadline())
    assert cluster.cached_leader(T0) is None


def test_a_restarted_broker_is_found_through_the_others(
    fake: FakeCluster, cluster: Cluster
) -> None:
    fake.create("t")
    cluster.leader(T0, cluster.retry_deadline())
    fake.brokers[0].stop()
    cluster.invalidate("t")
    with pytest.raises(
        BrokerUnavailableError, match=r"broker 1 at 127\.0\.0\.1:\d+, is not running"
    ):
        cluster.leader(T0, cluster.retry_deadline())
    fake.brokers[0].start()
    cluster.invalidate("t")
    assert cluster.leader(T0, cluster.retry_deadline()) == fake.brokers[0].address
    assert cluster.bootstrap == fake.bootstrap


def test_when_all_have_moved_the_hook_is_asked() -> None:
    with FakeCluster(1) as fake:
        fake.create("t")
        with Cluster.connect(fake.bootstrap, QUICK, rebootstrap=lambda: fake.bootstrap) as cluster:
            fake.brokers[0].stop()
            fake.brokers[0].start()
            assert cluster.leader(T0, cluster.retry_deadline()) == fake.brokers[0].address


def test_connecting_to_nobody_names_the_addresses_and_is_bounded() -> None:
    with FakeCluster(1) as fake:
        gone = fake.bootstrap
    config = ClientConfig(connect_timeout_ms=50)
    port = gone.brokers[0].port
    with pytest.raises(BrokerUnavailableError, match=rf"^No broker answers\. [A-Z].*:{port}"):
        Cluster.connect(gone, config)


def test_who_answers_as_no_broker_does_is_told_in_whole_sentences() -> None:
    def hang_up(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                listener.accept()[0].close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=hang_up, args=(listener,), daemon=True).start()
        somebody = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(BrokerUnavailableError, match=rf"answers\. The .*{somebody}"):
            Cluster.connect(Bootstrap.of(somebody), QUICK)
        listener.shutdown(socket.SHUT_RDWR)


def test_a_broker_that_hangs_does_not_hide_the_others(fake: FakeCluster) -> None:
    hanging = fake.brokers[0].fault(Api.METADATA, "hang")
    bootstrap = Bootstrap(tuple(broker.address for broker in fake.brokers))
    config = ClientConfig(connect_timeout_ms=4_000, request_timeout_ms=5_000)
    with Cluster.connect(bootstrap, config) as cluster:
        cluster.ask_metadata([], deadline=cluster.retry_deadline())
        assert len(cluster.brokers) == 2
    hanging.release.set()


def test_retries_end_with_the_deadline(cluster: Cluster) -> None:
    def fail(_: Deadline) -> None:
        raise NotLeaderError("no")

    with pytest.raises(NotLeaderError, match="Doing it did not succeed within"):
        cluster.retrying("Doing it", fail, deadline=cluster.deadline_ms(20))


def test_what_cannot_be_mended_is_not_retried(cluster: Cluster) -> None:
    tries = []

    def fail(_: Deadline) -> None:
        tries.append(1)
        raise UnknownTopicError("no")

    with pytest.raises(UnknownTopicError, match=r"^no$"):
        cluster.retrying("Doing it", fail)
    assert tries == [1]


def test_closing_ends_retries(fake: FakeCluster) -> None:
    cluster = Cluster.connect(fake.bootstrap, QUICK)

    def fail(_: Deadline) -> None:
        cluster.close()
        raise RequestTimeoutError("no")

    with pytest.raises(BrokerUnavailableError, match="closed"):
        cluster.retrying("Doing it", fail)


def test_a_cluster_is_not_pickled_but_its_bootstrap_is(fake: FakeCluster, cluster: Cluster) -> None:
    with pytest.raises(TypeError, match=r"cluster\.bootstrap"):
        pickle.dumps(cluster)
    assert pickle.loads(pickle.dumps(cluster.bootstrap)) == cluster.bootstrap
    assert isinstance(cluster.brokers[0], BrokerAddress)


@pytest.mark.long
def test_a_broker_that_was_silent_is_asked_last(fake: FakeCluster, cluster: Cluster) -> None:
    fake.create("t")
    for _ in range(2):
        fake.brokers[1].fault(Api.METADATA, "hang")
    for _ in range(20):
        cluster.invalidate("t")
        assert cluster.topic("t", cluster.retry_deadline()).topic_id == "id-t"
    assert len(fake.brokers[1].faults[Api.METADATA]) >= 1  # was not met a second time
