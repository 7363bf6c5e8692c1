from __future__ import annotations

from spark_logbus.client import Bootstrap, ClientConfig, Cluster
from spark_logbus.client.fetch.partition_failures import Troubles
from spark_logbus.errors import BrokerUnavailableError, RequestTimeoutError
from spark_logbus.model import TopicPartition
from tests.fakes.clock import ManualClock

TP = TopicPartition("t", 0)
CONFIG = ClientConfig(retry_backoff_ms=100, retry_backoff_max_ms=100)


def test_a_try_that_held_up_others_is_not_made_again_for_as_long() -> None:
    clock = ManualClock()
    with Cluster(Bootstrap.of("localhost:1"), CONFIG, clock=clock) as cluster:
        troubles = Troubles(cluster)
        began = clock.monotonic()
        clock.advance(5)
        troubles.failed([TP], RequestTimeoutError("Silent."), began=began)
        clock.advance(4.9)
        assert not troubles.may_try(TP)
        clock.advance(0.2)
        assert troubles.may_try(TP)


def test_a_try_that_failed_at_once_is_made_again_after_the_usual_pause() -> None:
    clock = ManualClock()
    with Cluster(Bootstrap.of("localhost:1"), CONFIG, clock=clock) as cluster:
        troubles = Troubles(cluster)
        troubles.failed([TP], BrokerUnavailableError("Refused."), began=clock.monotonic())
        assert not troubles.may_try(TP)
        clock.advance(0.11)
        assert troubles.may_try(TP)
